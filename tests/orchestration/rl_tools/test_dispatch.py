"""A call by somebody who is wrong about it is answered in JSON and never raises."""

import inspect
import json
from typing import Any

import pytest

from hermes_rl.orchestration import rl_tools
from hermes_rl.orchestration.rl_tools.context import CallerContext
from hermes_rl.orchestration.rl_tools.dispatch import RL_TOOLS, call_rl_tool

SEED = {
    "rl_list_environments": [],
    "rl_select_environment": ["name"],
    "rl_get_current_config": [],
    "rl_edit_config": ["field", "value"],
    "rl_start_training": [],
    "rl_check_status": ["run_id"],
    "rl_stop_training": ["run_id"],
    "rl_get_results": ["run_id"],
    "rl_list_runs": [],
    "rl_test_inference": [],
}


def test_the_ten_tools_have_the_seeds_names_and_arguments() -> None:
    assert {name: list(one.tool.parameters.get("required", ())) for name, one in RL_TOOLS.items()} == SEED


def test_the_inference_test_has_the_seeds_defaults() -> None:
    properties = RL_TOOLS["rl_test_inference"].tool.parameters["properties"]
    assert {name: properties[name]["default"] for name in ("num_steps", "group_size", "models")} == {
        "num_steps": 3,
        "group_size": 16,
        "models": None,
    }


@pytest.mark.parametrize("name", SEED)
def test_a_function_takes_what_its_schema_says(name: str) -> None:
    function = getattr(rl_tools, name)
    assert list(inspect.signature(function).parameters) == list(RL_TOOLS[name].tool.parameters["properties"])


@pytest.mark.parametrize("name", SEED)
def test_every_argument_is_described(name: str) -> None:
    properties = RL_TOOLS[name].tool.parameters["properties"]
    assert all(one.get("description") for one in properties.values())


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("rl_select_environment", {}, "name: Field required"),
        ("rl_select_environment", {"environment": "gsm8k"}, "environment: Extra inputs"),
        ("rl_select_environment", {"name": 5}, "name: "),
        ("rl_check_status", {"id": "abc"}, "Its parameters: run_id"),
        ("rl_list_runs", {"limit": 3}, "Its parameters: none"),
        ("rl_test_inference", {"num_steps": "three"}, "num_steps: "),
        ("rl_start_training", {"dry_run": {}}, "dry_run: "),
    ],
)
async def test_wrong_arguments_are_told_with_the_schema(
    desk: CallerContext, name: str, arguments: dict[str, Any], said: str
) -> None:
    answer = await call_rl_tool(desk, name, arguments)
    assert said in answer["error"]
    assert answer["next"].startswith(name)
    assert answer["schema"] == RL_TOOLS[name].tool.parameters


async def test_a_name_that_no_tool_has_is_answered_with_the_nearest(desk: CallerContext) -> None:
    answer = await call_rl_tool(desk, "rl_start_run")
    assert "rl_start_training" in answer["next"]


async def test_what_breaks_inside_is_told_and_not_raised(desk: CallerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[dict[str, Any]]:
        raise RuntimeError("the disk is gone")

    from dataclasses import replace

    answer = await call_rl_tool(replace(desk, runs=replace(desk.runs, list_runs=broken)), "rl_list_runs")
    assert "the disk is gone" in answer["error"]


def test_only_what_reads_says_that_it_reads() -> None:
    reading = {name for name, one in RL_TOOLS.items() if one.read_only}
    assert reading == {
        "rl_list_environments",
        "rl_get_current_config",
        "rl_check_status",
        "rl_get_results",
        "rl_list_runs",
    }
    assert [name for name, one in RL_TOOLS.items() if one.destructive] == ["rl_stop_training"]


async def test_a_function_answers_with_json_text() -> None:
    assert json.loads(await rl_tools.rl_list_runs()) == {"runs": [], "count": 0}


async def test_the_functions_work_on_one_draft() -> None:
    assert json.loads(await rl_tools.rl_select_environment("plain_text", "self-hosted"))["environment"] == "plain_text"
    assert json.loads(await rl_tools.rl_edit_config("group_size", 4))["value"] == 4
    assert json.loads(await rl_tools.rl_get_current_config())["environment"] == "plain_text"
    assert "base_model" in json.loads(await rl_tools.rl_start_training())["error"]
    assert "runs" in json.loads(await rl_tools.rl_check_status("nothing"))
    assert "error" in json.loads(await rl_tools.rl_stop_training("nothing"))
    assert "error" in json.loads(await rl_tools.rl_get_results("nothing"))
    assert "error" in json.loads(await rl_tools.rl_test_inference(models=[]))
    assert json.loads(await rl_tools.rl_list_environments())["count"]
