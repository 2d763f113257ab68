"""What a preset of the user's own does to a draft."""

from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.configuration.build import build_run_file
from hermes_rl.orchestration.configuration.draft import Draft
from hermes_rl.orchestration.configuration.edit import edit_field, new_draft
from hermes_rl.orchestration.configuration.view import draft_view
from hermes_rl.orchestration.presets.preset import user_presets_dir
from tests.orchestration.configuration.environments import PLAIN, written


@pytest.fixture
def preset(draft: Draft) -> Path:
    user_presets_dir().mkdir(parents=True)
    return user_presets_dir() / "house.yaml"


def test_a_draft_follows_what_an_operator_changes(draft: Draft, preset: Path) -> None:
    preset.write_text("description: x\nlocked: {tinker: {total_steps: 7}}\n")
    ours = edit_field(draft, "preset", "house")
    preset.write_text("description: x\nlocked: {tinker: {total_steps: 8}}\n")
    assert build_run_file(ours).tinker["total_steps"] == 8


def test_fields_it_needs_must_be_set_first(draft: Draft, preset: Path) -> None:
    preset.write_text("description: x\nneeds: {fields: {learning_rate: value}}\n")
    ours = edit_field(draft, "preset", "house")
    with pytest.raises(ConfigError, match="learning_rate is not set"):
        build_run_file(ours)
    assert build_run_file(edit_field(ours, "learning_rate", 0.1)).tinker["learning_rate"] == 0.1


def test_two_values_for_one_field_are_refused(draft: Draft, preset: Path) -> None:
    preset.write_text("description: x\nlocked: {env: {batch_size: 8}, tinker: {batch_size: 16}}\n")
    with pytest.raises(ConfigError, match=r"house\.yaml sets batch_size to both 8 and 16 \(as tinker\.batch_size\)"):
        edit_field(draft, "preset", "house")


def test_an_address_in_it_does_not_bind_the_run(draft: Draft, preset: Path) -> None:
    preset.write_text(
        "description: x\nlocked: {env: {rollout_server_url: http://localhost:8000, max_agent_turns: 2}}\n"
    )
    ours = edit_field(draft, "preset", "house")
    names = [field["name"] for field in draft_view(ours)["locked_fields"]]
    assert names.count("rollout_server_url") == 1 and "max_agent_turns" in names


def test_a_field_of_one_environments_own_is_locked_for_it(draft: Draft, preset: Path) -> None:
    preset.write_text("description: x\nlocked: {env: {level: 2, families: [echo]}}\n")
    ours = edit_field(draft, "preset", "house")
    assert build_run_file(ours).environments[0].env["level"] == 2
    with pytest.raises(ConfigError, match="level is locked at 2 by the preset house"):
        edit_field(ours, "level", 3)


def test_an_environment_named_like_a_section_gets_another_name(described_here: None, tmp_path: Path) -> None:
    draft = new_draft(written(tmp_path, PLAIN, name="env"))
    assert draft.environments[0].name == "env-environment"
