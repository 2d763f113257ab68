from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.configuration import introspect
from hermes_rl.orchestration.configuration.draft import Draft
from hermes_rl.orchestration.configuration.edit import edit_field, edit_fields, new_draft
from hermes_rl.orchestration.configuration.view import draft_view
from hermes_rl.orchestration.discovery import lookup
from hermes_rl.orchestration.discovery.types import BaseClassKind
from tests.orchestration.configuration.environments import model_folder, written


def value_of(draft: Draft, name: str) -> Any:
    return next(field for field in draft_view(draft)["configurable_fields"] if field["name"] == name)["current_value"]


def test_values_of_config_init_stand_and_the_rest_is_the_presets(draft: Draft) -> None:
    values = [value_of(draft, name) for name in ("level", "max_agent_turns", "group_size", "batch_size")]
    assert values == [5, 7, 16, 128]


def test_a_laptops_preset_replaces_what_the_environment_says(described_here: None, tmp_path: Path) -> None:
    text = written(tmp_path).file.read_text().replace("level=5", "level=5, group_size=64, batch_size=512")
    small = new_draft(written(tmp_path, text), "laptop")
    assert (value_of(small, "group_size"), value_of(small, "batch_size")) == (8, 16)


def test_the_hosted_preset_leaves_what_the_environment_says(described_here: None, tmp_path: Path) -> None:
    text = written(tmp_path).file.read_text().replace("level=5", "level=5, group_size=64, batch_size=512")
    hosted = new_draft(written(tmp_path, text))
    assert (value_of(hosted, "group_size"), value_of(hosted, "batch_size")) == (64, 512)


@pytest.mark.parametrize(
    ("field", "given", "kept"),
    [
        ("group_size", "8", 8),
        ("group_size", 8.0, 8),
        ("level", "9", 9),
        ("style", "long", "long"),
        ("thinking_mode", "yes", True),
        ("enabled_toolsets", "terminal, file", ["terminal", "file"]),
        ("enabled_toolsets", '["file"]', ["file"]),
        ("max_tool_calls", "null", None),
        ("tool_settings", '{"web": {"provider": "bm25"}}', {"web": {"provider": "bm25"}}),
        ("min_group_share", "5e-1", 0.5),
        ("env.group_size", 4, 4),
        ("token_limit", "50000", 50_000),
        ("openai.max_retries", "7", 7),
    ],
)
def test_what_is_meant_is_taken(draft: Draft, field: str, given: object, kept: object) -> None:
    assert value_of(edit_field(draft, field, given), field.removeprefix("env.")) == kept


@pytest.mark.parametrize(
    ("field", "given", "allowed"),
    [
        ("group_size", "eight", "a whole number from 2 to 65535"),
        ("group_size", 1, "a whole number from 2 to 65535"),
        ("group_size", True, "a whole number from 2 to 65535"),
        ("group_size", 2.5, "a whole number"),
        ("level", 10, "a whole number from 1 to 9"),
        ("style", "wide", "one of short, long"),
        ("min_group_share", "nan", "a number above 0 to 1"),
        ("thinking_mode", "perhaps", "true or false"),
        ("terminal_backend", "cellar", "one of auto, bubblewrap"),
        ("tool_call_parser", "nobody", "hermes"),
        ("enabled_toolsets", ["nothing"], "no toolset is named 'nothing'; known: "),
        ("batch_size", -1, "a whole number from 1"),
        ("tool_settings", "web", "an object"),
        ("warmup_steps", 2500, "must be less than total_steps 2500"),
        ("agent_temperature", 0, "set temperature to 1"),
    ],
)
def test_a_refusal_names_field_value_and_range(draft: Draft, field: str, given: object, allowed: str) -> None:
    with pytest.raises(ConfigError) as refused:
        edit_field(draft, field, given)
    assert all(part in str(refused.value) for part in (field, repr(given), allowed))


def test_a_rule_of_the_environments_own_is_heard(draft: Draft) -> None:
    with pytest.raises(ConfigError, match=r"low cannot be 11: low 11 must not be more than high 10"):
        edit_field(draft, "low", 11)


def test_an_unknown_name_is_answered_with_the_nearest(draft: Draft) -> None:
    with pytest.raises(ConfigError, match=r"no field is named 'grup_size'; did you mean group_size"):
        edit_field(draft, "grup_size", 8)


def test_a_locked_field_tells_its_value_and_the_way_out(draft: Draft) -> None:
    with pytest.raises(
        ConfigError,
        match=r"learning_rate is locked at 4e-05 by the preset tinker; .*'preset' .*\(laptop, self-hosted\)",
    ):
        edit_field(draft, "learning_rate", 1e-4)


@pytest.mark.parametrize("field", ["rollout_server_url", "openai.base_url", "port", "serve_dir", "shard"])
def test_what_the_run_sets_itself_cannot_be_edited(laptop: Draft, field: str) -> None:
    with pytest.raises(ConfigError, match=rf"{field} is locked at"):
        edit_field(laptop, field, "http://elsewhere:1")


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("tinker.api_key", "abcdef"),
        ("user_endpoint", {"api_key": "abcdef"}),
        ("tool_settings", {"web": {"api_key": "abcdef"}}),
        ("wandb_name", "sk-abcdefghijklmnopqrstuv"),
        ("extra_body", '{"password": "abcdef"}'),
    ],
)
def test_a_secret_is_refused_and_not_repeated(laptop: Draft, field: str, given: object) -> None:
    with pytest.raises(ConfigError, match=r"hermes-rl config set NAME.*env:NAME or file:PATH") as refused:
        edit_field(laptop, field, given)
    assert "abcdef" not in str(refused.value)


def test_a_reference_to_a_secret_is_taken(laptop: Draft) -> None:
    assert value_of(edit_field(laptop, "tinker.api_key", "env:MY_KEY"), "tinker.api_key") == "env:MY_KEY"


def test_another_preset_opens_what_was_locked(draft: Draft) -> None:
    assert (
        value_of(edit_field(edit_field(draft, "preset", "self-hosted"), "learning_rate", 0.01), "learning_rate") == 0.01
    )


def test_an_edit_that_a_preset_locks_is_put_aside_and_comes_back(laptop: Draft) -> None:
    edit = edit_field(laptop, "learning_rate", 0.01)
    hosted = edit_field(edit, "preset", "tinker")
    assert "learning_rate was set to 0.01, but the preset tinker locks it" in " ".join(draft_view(hosted)["notes"])
    assert value_of(edit_field(hosted, "preset", "laptop"), "learning_rate") == 0.01


def test_an_unknown_preset_is_answered_with_those_there_are(draft: Draft) -> None:
    with pytest.raises(ConfigError, match=r"preset 'labtop' is not one of laptop, .*did you mean 'laptop'"):
        edit_field(draft, "preset", "labtop")


def test_engine_fields_are_for_runs_with_an_engine(draft: Draft) -> None:
    with pytest.raises(ConfigError, match=r"engine\.samples: .* does not start an engine"):
        edit_field(draft, "engine.samples", 4)


def test_a_model_that_is_not_there_is_refused(laptop: Draft) -> None:
    with pytest.raises(ConfigError, match=r"base_model cannot be '/nowhere': there is no such folder; it takes"):
        edit_field(laptop, "base_model", "/nowhere")


def test_a_laptop_takes_a_folder_and_self_hosted_a_name_too(laptop: Draft) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        edit_field(laptop, "base_model", "Qwen/Qwen3-0.6B")
    own = edit_field(edit_field(laptop, "preset", "self-hosted"), "base_model", "Qwen/Qwen3-0.6B")
    assert value_of(own, "base_model") == "Qwen/Qwen3-0.6B"


def test_the_engine_must_hold_the_adapters_rank(laptop: Draft) -> None:
    with pytest.raises(ConfigError, match=r"engine\.rank cannot be 8: .*set engine\.rank to 16 or more, or lora_rank"):
        edit_field(laptop, "engine.rank", 8)


def test_the_engine_must_take_the_longest_sequence(laptop: Draft) -> None:
    with pytest.raises(ConfigError, match=r"engine\.max_length cannot be 100: .*or max_token_trainer_length to 100"):
        edit_field(laptop, "engine.max_length", 100)


def test_an_environment_of_the_installed_atroposlib_is_refused_with_what_to_do(
    described_here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "has_atroposlib", lambda: True)
    with pytest.raises(ConfigError, match=r"the installed atroposlib.*HermesAgentBaseEnv.*docs/migrating.md"):
        new_draft(written(tmp_path, kind=BaseClassKind.ATROPOS))


def test_a_name_that_two_parts_have_must_say_which(described_here: None, tmp_path: Path) -> None:
    text = (
        written(tmp_path).file.read_text().replace("    low: int = 0\n", "    low: int = 0\n    loss: str = 'mine'\n")
    )
    draft = new_draft(written(tmp_path, text))
    with pytest.raises(ConfigError, match=r"loss is a field of several parts; use one of: env\.loss, tinker\.loss"):
        edit_field(draft, "loss", "ppo")
    assert edit_field(draft, "tinker.loss", "ppo").changes == {"tinker.loss": "ppo"}


def test_a_field_that_json_cannot_hold_is_left_to_the_file(described_here: None, tmp_path: Path) -> None:
    text = written(tmp_path).file.read_text()
    text = text.replace("    low: int = 0\n", "    low: int = 0\n    way: Any = Field(default=object())\n")
    with pytest.raises(ConfigError, match=r"way can be set only in the environment's file"):
        edit_field(new_draft(written(tmp_path, text)), "way", 1)


def test_one_change_of_wording_does_not_touch_the_draft_before(draft: Draft) -> None:
    before = replace(draft)
    edit_field(draft, "group_size", 4)
    assert draft == before


def test_a_home_folder_in_a_models_path_is_written_out(laptop: Draft, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = model_folder(tmp_path)
    assert value_of(edit_field(laptop, "base_model", "~/model"), "base_model") == folder


def test_several_edits_are_described_once(draft: Draft, monkeypatch: pytest.MonkeyPatch) -> None:
    describe = Mock(wraps=introspect.describe)
    monkeypatch.setattr(introspect, "describe", describe)
    after = edit_fields(draft, [("group_size", 4), ("level", 2), ("batch_size", 64)])
    assert describe.call_count == 1
    assert [value_of(after, name) for name in ("group_size", "level", "batch_size")] == [4, 2, 64]


def test_edits_that_are_valid_only_together_are_accepted_in_any_order(draft: Draft) -> None:
    assert value_of(edit_fields(draft, [("low", 50), ("high", 60)]), "low") == 50
    assert value_of(edit_fields(draft, [("learning_rate", 0.01), ("preset", "laptop")]), "learning_rate") == 0.01


def test_the_refusal_of_several_edits_names_the_wrong_one_or_all(draft: Draft) -> None:
    with pytest.raises(ConfigError, match=r"group_size cannot be 1: .*it takes a whole number from 2"):
        edit_fields(draft, [("level", 2), ("group_size", 1)])
    with pytest.raises(ConfigError, match=r"cannot set level, low: low 11 must not be more than high 10"):
        edit_fields(draft, [("level", 2), ("low", 11)])
