"""Several environments in one run."""

from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.configuration import edit as editing_module
from hermes_rl.orchestration.configuration.build import build_run_file
from hermes_rl.orchestration.configuration.draft import Draft
from hermes_rl.orchestration.configuration.edit import add_environment, edit_field
from hermes_rl.orchestration.configuration.view import draft_view
from tests.orchestration.configuration.environments import PLAIN, written

OTHER = PLAIN.replace('    style: Literal["short", "long"]', '    manner: Literal["short", "long"]')


@pytest.fixture
def pair(laptop: Draft, tmp_path: Path) -> Draft:
    return add_environment(laptop, written(tmp_path, OTHER, name="other"), weight=3)


def test_weights_reach_the_environments(pair: Draft) -> None:
    run = build_run_file(edit_field(pair, "counting.weight", "2.5"))
    assert [(one.weight, one.env["inference_weight"]) for one in run.environments] == [(2.5, 2.5), (3.0, 3.0)]


@pytest.mark.parametrize("weight", [0, -1, "much", "inf", True])
def test_a_weight_is_a_number_above_nothing(pair: Draft, weight: object) -> None:
    with pytest.raises(ConfigError, match=r"other\.weight cannot be .*; it takes a number above 0"):
        edit_field(pair, "other.weight", weight)


def test_a_plain_name_edits_all_and_a_name_before_it_one(pair: Draft) -> None:
    run = build_run_file(edit_field(edit_field(pair, "max_agent_turns", 4), "other.max_agent_turns", 2))
    assert [one.env["max_agent_turns"] for one in run.environments] == [4, 2]


def test_editing_all_takes_back_what_was_edited_of_one(pair: Draft) -> None:
    run = build_run_file(edit_field(edit_field(pair, "other.max_agent_turns", 2), "max_agent_turns", 4))
    assert [one.env["max_agent_turns"] for one in run.environments] == [4, 4]


def test_fields_of_its_own_reach_the_environment_that_has_them(pair: Draft) -> None:
    run = build_run_file(edit_field(pair, "manner", "long"))
    assert ("manner" in run.environments[0].env, run.environments[1].env["manner"]) == (False, "long")


def test_values_that_differ_are_shown_by_environment(pair: Draft) -> None:
    names = [field["name"] for field in draft_view(edit_field(pair, "other.level", 2))["configurable_fields"]]
    assert {"counting.level", "other.level"} <= set(names) and "level" not in names


def test_each_environment_has_a_seed_of_its_own(pair: Draft) -> None:
    seeds = [one.env["seed"] for one in build_run_file(pair).environments]
    assert len(set(seeds)) == 2


def test_a_seed_of_one_environment_can_be_set(pair: Draft) -> None:
    assert [one.env["seed"] for one in build_run_file(edit_field(pair, "other.seed", 77)).environments] == [0, 77]


def test_what_is_of_the_whole_run_cannot_be_edited_of_one(pair: Draft) -> None:
    with pytest.raises(ConfigError, match=r"batch_size applies to the whole run; edit batch_size"):
        edit_field(pair, "other.batch_size", 8)


def test_an_unknown_field_of_one_is_answered_with_its_own(pair: Draft) -> None:
    with pytest.raises(ConfigError, match=r"the environment other has no field 'maner'; did you mean manner"):
        edit_field(pair, "other.maner", "long")


def test_the_same_environment_is_not_trained_on_twice(laptop: Draft, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"named 'counting'.*counting\.weight, add the second with evaluation_only"):
        add_environment(laptop, written(tmp_path))


def test_the_same_environment_may_evaluate_beside_its_training(laptop: Draft, tmp_path: Path) -> None:
    draft = add_environment(laptop, written(tmp_path), evaluation_only=True)
    run = build_run_file(edit_field(draft, "counting-2.level", 9))
    told = [(one.name, one.evaluation_only, one.env["evaluation_only"], one.env["level"]) for one in run.environments]
    assert told == [("counting", False, False, 5), ("counting-2", True, True, 9)]


def test_one_that_only_evaluates_may_have_groups_of_one(laptop: Draft, tmp_path: Path) -> None:
    draft = add_environment(laptop, written(tmp_path, OTHER, name="other"), evaluation_only=True)
    assert build_run_file(edit_field(draft, "other.group_size", 1)).environments[1].env["group_size"] == 1


def test_something_must_be_trained_on(laptop: Draft) -> None:
    with pytest.raises(ConfigError, match=r"no environment would be left to train on"):
        edit_field(laptop, "counting.evaluation_only", True)


def test_the_list_of_environments_is_a_field(pair: Draft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    third = written(tmp_path, name="third")
    monkeypatch.setattr(editing_module, "find_environment", lambda name, **_: {"third": third}[name])
    draft = edit_field(edit_field(pair, "other.level", 2), "environments", ["other", {"name": "third", "weight": 2}])
    run = build_run_file(draft)
    assert [(one.name, one.weight, one.env["level"]) for one in run.environments] == [("other", 3, 2), ("third", 2, 5)]


@pytest.mark.parametrize("value", [[], 3, [3], [{"weight": 1}], [{"name": "other", "size": 1}], None])
def test_a_list_of_environments_that_is_none_is_refused(pair: Draft, value: object) -> None:
    with pytest.raises(ConfigError, match=r"environments cannot be .*; it takes a list of names"):
        edit_field(pair, "environments", value)


def test_the_first_trained_environments_batch_is_the_runs(described_here: None, tmp_path: Path, draft: Draft) -> None:
    text = OTHER.replace("level=5", "level=5, batch_size=48")
    run = build_run_file(add_environment(draft, written(tmp_path, text, name="other")))
    assert {run.tinker["batch_size"], *(one.env["batch_size"] for one in run.environments)} == {48}
