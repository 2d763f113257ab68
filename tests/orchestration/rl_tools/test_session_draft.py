"""The tools that make a draft, as their JSON tells it."""

import asyncio
from pathlib import Path

import pytest

from hermes_rl.orchestration.rl_tools.context import CallerContext
from hermes_rl.orchestration.rl_tools.dispatch import call_rl_tool
from tests.support.stand_in_runs import StandInRuns


async def test_an_environment_of_the_users_is_listed_with_all_that_is_asked_of_a_listing(desk: CallerContext) -> None:
    answer = await call_rl_tool(desk, "rl_list_environments")
    [one] = [one for one in answer["environments"] if one["name"] == "plain_text"]
    assert {"name", "id", "class_name", "file_path", "description"} <= one.keys()
    assert answer["count"] == len(answer["environments"])


async def test_a_new_file_is_seen_at_once(desk: CallerContext, home: Path) -> None:
    before = (await call_rl_tool(desk, "rl_list_environments"))["count"]
    text = (home / "rl" / "environments" / "plain_text_env.py").read_text()
    (home / "rl" / "environments" / "another.py").write_text(text.replace('"plain_text"', '"another"'))
    assert (await call_rl_tool(desk, "rl_list_environments"))["count"] == before + 1


async def test_a_selected_environment_answers_with_its_file_and_preset(desk: CallerContext) -> None:
    answer = await call_rl_tool(desk, "rl_select_environment", {"name": "plain_text"})
    assert (answer["environment"], answer["preset"]) == ("plain_text", "tinker")
    assert answer["file_path"].endswith("plain_text_env.py")


async def test_an_unknown_environment_is_refused_with_those_there_are(desk: CallerContext) -> None:
    answer = await call_rl_tool(desk, "rl_select_environment", {"name": "plain_txt"})
    assert "plain_txt" in answer["error"]
    assert "plain_text" in answer["available"]


async def test_the_fields_show_what_the_environment_says_and_not_the_class(desk: CallerContext) -> None:
    await call_rl_tool(desk, "rl_select_environment", {"name": "plain_text", "preset": "self-hosted"})
    assert (await call_rl_tool(desk, "rl_get_current_config"))["more_fields"]["max_agent_turns"] == 1


async def test_an_edit_is_kept_with_its_type(desk: CallerContext) -> None:
    await call_rl_tool(desk, "rl_select_environment", {"name": "plain_text"})
    answer = await call_rl_tool(desk, "rl_edit_config", {"field": "group_size", "value": "4"})
    assert answer["value"] == 4
    assert answer["config"]["group_size"] == 4


async def test_a_locked_field_is_refused_with_its_value(desk: CallerContext) -> None:
    await call_rl_tool(desk, "rl_select_environment", {"name": "plain_text"})
    answer = await call_rl_tool(desk, "rl_edit_config", {"field": "learning_rate", "value": 0.1})
    assert answer["locked_value"] == 4e-5
    assert "preset" in answer["next"]


async def test_a_wrong_value_is_refused_with_what_the_field_allows(desk: CallerContext) -> None:
    await call_rl_tool(desk, "rl_select_environment", {"name": "plain_text"})
    answer = await call_rl_tool(desk, "rl_edit_config", {"field": "group_size", "value": "many"})
    assert answer["field"]["name"] == "group_size"
    assert "rl_edit_config" in answer["next"]


async def test_an_unknown_field_is_refused_with_the_fields_there_are(desk: CallerContext) -> None:
    await call_rl_tool(desk, "rl_select_environment", {"name": "plain_text"})
    answer = await call_rl_tool(desk, "rl_edit_config", {"field": "group_sise", "value": 4})
    assert "group_size" in answer["available_fields"]


@pytest.mark.parametrize("name", ["rl_get_current_config", "rl_start_training", "rl_test_inference"])
async def test_without_a_selection_the_next_call_is_named(desk: CallerContext, name: str) -> None:
    answer = await call_rl_tool(desk, name)
    assert "rl_select_environment" in answer["next"]


async def test_two_sessions_never_see_each_others_draft(runs: StandInRuns) -> None:
    first, second = CallerContext("first", runs.functions), CallerContext("second", runs.functions)
    await call_rl_tool(first, "rl_select_environment", {"name": "plain_text"})
    assert "error" in await call_rl_tool(second, "rl_get_current_config")


async def test_edits_at_the_same_time_are_all_kept(desk: CallerContext) -> None:
    await call_rl_tool(desk, "rl_select_environment", {"name": "plain_text", "preset": "self-hosted"})
    changes = {"group_size": 4, "total_steps": 7, "lora_rank": 8}
    await asyncio.gather(
        *(call_rl_tool(desk, "rl_edit_config", {"field": field, "value": value}) for field, value in changes.items())
    )
    config = (await call_rl_tool(desk, "rl_get_current_config"))["configurable_fields"]
    now = {one["name"]: one["current_value"] for one in config if one["name"] in changes}
    assert now == changes


async def test_a_second_environment_is_added_with_its_weight(desk: CallerContext) -> None:
    await call_rl_tool(desk, "rl_select_environment", {"name": "plain_text", "preset": "self-hosted"})
    answer = await call_rl_tool(desk, "rl_select_environment", {"name": "gsm8k", "add": True, "weight": 0.5})
    assert [one["name"] for one in answer["environments"]] == ["plain_text", "gsm8k"]
    assert answer["environments"][1]["weight"] == 0.5


async def test_a_first_environment_cannot_be_for_evaluation_only(desk: CallerContext) -> None:
    answer = await call_rl_tool(desk, "rl_select_environment", {"name": "plain_text", "evaluation_only": True})
    assert "to train on" in answer["error"]
