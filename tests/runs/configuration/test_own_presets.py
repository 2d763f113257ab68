"""What a preset of the user's own does to a draft."""

from pathlib import Path

import pytest

from hermes_rl.errors import ConfigError
from hermes_rl.runs.configuration.draft import Draft
from hermes_rl.runs.configuration.editing import edited, new_draft
from hermes_rl.runs.configuration.making import run_file_of
from hermes_rl.runs.configuration.showing import shown
from hermes_rl.runs.presets import own_presets
from tests.runs.configuration.environments import PLAIN, written


@pytest.fixture
def preset(draft: Draft) -> Path:
    own_presets().mkdir(parents=True)
    return own_presets() / "house.yaml"


def test_a_draft_follows_what_an_operator_changes(draft: Draft, preset: Path) -> None:
    preset.write_text("description: x\nlocked: {tinker: {total_steps: 7}}\n")
    ours = edited(draft, "preset", "house")
    preset.write_text("description: x\nlocked: {tinker: {total_steps: 8}}\n")
    assert run_file_of(ours).tinker["total_steps"] == 8


def test_fields_it_needs_must_be_set_first(draft: Draft, preset: Path) -> None:
    preset.write_text("description: x\nneeds: {fields: {learning_rate: value}}\n")
    ours = edited(draft, "preset", "house")
    with pytest.raises(ConfigError, match="learning_rate is not set yet"):
        run_file_of(ours)
    assert run_file_of(edited(ours, "learning_rate", 0.1)).tinker["learning_rate"] == 0.1


def test_two_values_for_one_field_are_refused(draft: Draft, preset: Path) -> None:
    preset.write_text("description: x\nlocked: {env: {batch_size: 8}, tinker: {batch_size: 16}}\n")
    with pytest.raises(ConfigError, match=r"house\.yaml gives batch_size two values, 8 and 16 as tinker\.batch_size"):
        edited(draft, "preset", "house")


def test_an_address_in_it_does_not_bind_the_run(draft: Draft, preset: Path) -> None:
    preset.write_text(
        "description: x\nlocked: {env: {rollout_server_url: http://localhost:8000, max_agent_turns: 2}}\n"
    )
    ours = edited(draft, "preset", "house")
    names = [field["name"] for field in shown(ours)["locked_fields"]]
    assert names.count("rollout_server_url") == 1 and "max_agent_turns" in names


def test_a_field_of_one_environments_own_is_locked_for_it(draft: Draft, preset: Path) -> None:
    preset.write_text("description: x\nlocked: {env: {level: 2, families: [echo]}}\n")
    ours = edited(draft, "preset", "house")
    assert run_file_of(ours).environments[0].env["level"] == 2
    with pytest.raises(ConfigError, match="level is locked at 2 by the preset house"):
        edited(ours, "level", 3)


def test_an_environment_named_like_a_section_gets_another_name(described_here: None, tmp_path: Path) -> None:
    draft = new_draft(written(tmp_path, PLAIN, name="env"))
    assert draft.environments[0].name == "env-environment"
