from pathlib import Path
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.orchestration.configuration.draft import Draft
from hermes_rl.orchestration.configuration.edit import edit_field, new_draft
from hermes_rl.orchestration.configuration.view import draft_view
from tests.orchestration.configuration.environments import PLAIN, written


def locked(told: dict[str, Any]) -> dict[str, Any]:
    return {field["name"]: field["locked_value"] for field in told["locked_fields"]}


def test_locked_fields_are_shown_with_the_value_they_are_locked_at(draft: Draft) -> None:
    told = locked(draft_view(draft))
    assert (told["tokenizer_name"], told["max_token_length"], told["lora_rank"]) == ("Qwen/Qwen3-8B", 8192, 32)


def test_addresses_are_locked_and_say_that_they_are_the_runs_own(draft: Draft) -> None:
    assert locked(draft_view(draft))["rollout_server_url"] == "http://localhost:(a free port)"


def test_each_field_says_what_it_takes(draft: Draft) -> None:
    level = next(field for field in draft_view(draft)["configurable_fields"] if field["name"] == "level")
    assert level == {
        "name": "level",
        "type": "int",
        "default": 5,
        "description": "How hard the items are.",
        "current_value": 5,
        "allowed": "a whole number from 1 to 9",
        "own": True,
    }


def test_no_field_is_both_open_and_locked(draft: Draft, laptop: Draft) -> None:
    for told in (draft_view(draft), draft_view(laptop)):
        names = [field["name"] for field in told["configurable_fields"]]
        assert len(set(names)) == len(names) and not set(names) & locked(told).keys()


def test_every_field_that_is_shown_as_open_can_be_edited_by_its_name(laptop: Draft) -> None:
    for field in draft_view(laptop)["configurable_fields"]:
        if field["name"] not in {"base_model", "engine.model"}:
            assert edit_field(laptop, field["name"], field["current_value"]) is not None


def test_the_seeds_fields_and_the_environments_own_come_first(draft: Draft) -> None:
    names = [field["name"] for field in draft_view(draft)["configurable_fields"]]
    assert names[:7] == ["group_size", "batch_size", "wandb_name", "level", "style", "low", "high"]


def test_it_is_json(laptop: Draft) -> None:
    assert fast_json.loads(fast_json.dumps(draft_view(laptop))) == draft_view(laptop)


def test_what_is_missing_is_said(described_here: None, tmp_path: Path) -> None:
    told = draft_view(new_draft(written(tmp_path), "laptop"))
    assert told["missing"][0].startswith("base_model is not set") and "missing" in told["tip"]


def test_a_batch_of_no_whole_groups_is_noted_with_what_to_take(draft: Draft) -> None:
    notes = draft_view(edit_field(draft, "batch_size", 100))["notes"]
    assert "gives 112 rollouts per step; set batch_size to 96 or 112" in notes[0]


def test_a_file_that_changed_is_noted(draft: Draft, tmp_path: Path) -> None:
    written(tmp_path, PLAIN + "\n# changed\n")
    assert "has changed since it was selected" in draft_view(draft)["notes"][0]


def test_a_file_that_is_gone_is_noted(draft: Draft) -> None:
    draft.environments[0].file.unlink()
    assert "is gone" in draft_view(draft)["notes"][0]


def test_presets_are_listed(draft: Draft) -> None:
    assert [preset["name"] for preset in draft_view(draft)["presets"]] == ["laptop", "self-hosted", "tinker"]
