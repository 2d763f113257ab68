"""An agent that only reads finishes the workflow, whatever it gets wrong on the way."""

from typing import Any

import pytest

from hermes_rl.orchestration.rl_tools.context import CallerContext
from hermes_rl.orchestration.rl_tools.dispatch import RL_TOOLS, call_rl_tool
from tests.support.reading_agent import ReadingAgent, ReadTool
from tests.support.stand_in_runs import StandInRuns


@pytest.fixture
def agent(desk: CallerContext) -> ReadingAgent:
    async def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return await call_rl_tool(desk, name, arguments)

    tools = [ReadTool(name, one.tool.description, one.tool.parameters) for name, one in RL_TOOLS.items()]
    return ReadingAgent(tools, call)


async def selected(agent: ReadingAgent, wish: str = "plain_text") -> dict[str, Any]:
    """The environment that comes nearest to the wish, with a preset that needs no key."""
    listed = await agent.well(agent.tool("call this first"))
    name = agent.nearest(wish, [one["name"] for one in listed["environments"]])
    return await agent.well(agent.tool("choose the environment"), name=name, preset="self-hosted")


async def started(agent: ReadingAgent, model: str) -> str:
    await selected(agent)
    await agent.well(agent.tool("change one field"), field="base_model", value=model)
    return str((await agent.well(agent.tool("start a training run of the draft")))["run_id"])


async def test_it_begins_with_the_wrong_tool(agent: ReadingAgent) -> None:
    refused = await agent.wrong(agent.tool("start a training run of the draft"))
    listed = await agent.follow(refused)
    assert listed["count"]


async def test_it_selects_a_wrong_name(agent: ReadingAgent) -> None:
    refused = await agent.wrong(agent.tool("choose the environment"), name="plain-texts")
    answer = await agent.follow(refused, name=agent.nearest("plain-texts", refused["available"]))
    assert answer["environment"] == "plain_text"


async def test_it_gives_a_value_of_the_wrong_type(agent: ReadingAgent) -> None:
    await selected(agent)
    refused = await agent.wrong(agent.tool("change one field"), field="group_size", value="a few")
    assert "int" in refused["field"]["type"].lower()
    name, arguments = agent.named_calls(refused)[0]
    assert (await agent.well(name, **{**arguments, "value": 4}))["value"] == 4


async def test_it_edits_a_locked_field(agent: ReadingAgent) -> None:
    listed = await agent.well(agent.tool("call this first"))
    await agent.well(
        "rl_select_environment", name=agent.nearest("plain", [one["name"] for one in listed["environments"]])
    )
    refused = await agent.wrong(agent.tool("change one field"), field="lora_rank", value=8)
    assert refused["locked_value"] == 32
    await agent.follow(refused, "rl_edit_config", value="self-hosted")
    assert (await agent.well("rl_edit_config", field="lora_rank", value=8))["value"] == 8


async def test_it_has_no_key_for_hosted_training(agent: ReadingAgent, model: str) -> None:
    await agent.well("rl_select_environment", name="plain_text")
    refused = await agent.wrong(agent.tool("start a training run of the draft"))
    await agent.follow(refused, "rl_edit_config")
    refused = await agent.wrong("rl_start_training")
    assert "base_model" in refused["error"]
    await agent.well("rl_edit_config", field="base_model", value=model)
    assert (await agent.well("rl_start_training"))["status"] == "starting"


async def test_it_starts_twice(agent: ReadingAgent, runs: StandInRuns, model: str) -> None:
    run_id = await started(agent, model)
    answer = await agent.well("rl_start_training")
    assert answer["run_id"] == run_id
    assert (await agent.follow(answer))["run_id"] == run_id
    assert len(runs.files) == 1


async def test_it_asks_for_a_run_that_is_not_there(agent: ReadingAgent, model: str) -> None:
    run_id = await started(agent, model)
    refused = await agent.wrong(agent.tool("show the status of a run"), run_id=f"{run_id}x")
    assert agent.nearest(f"{run_id}x", refused["runs"]) == run_id
    listed = await agent.follow(refused)
    assert [one["run_id"] for one in listed["runs"]] == [run_id]


async def test_it_names_an_argument_wrongly(agent: ReadingAgent, model: str) -> None:
    run_id = await started(agent, model)
    refused = await agent.wrong("rl_check_status", id=run_id)
    [needed] = refused["schema"]["required"]
    assert (await agent.well("rl_check_status", **{needed: run_id}))["run_id"] == run_id


async def test_it_stops_twice_and_goes_on_with_the_run(agent: ReadingAgent, model: str) -> None:
    run_id = await started(agent, model)
    for _ in range(2):
        stopped = await agent.well(agent.tool("stop a run"), run_id=run_id)
        assert stopped["run_id"] == run_id
    status = await agent.well("rl_check_status", run_id=run_id)
    assert (await agent.follow(status, "rl_start_training"))["run_id"] == run_id


async def test_it_finishes_the_whole_workflow(agent: ReadingAgent, model: str) -> None:
    run_id = await started(agent, model)
    status = await agent.well(agent.tool("show the status of a run"), run_id=run_id)
    for _ in range(10):
        if status["status"] == "finished":
            break
        status = await agent.follow(status, "rl_check_status")
    results = await agent.follow(status)
    assert results["weights_path"]
    assert any(one["run_id"] == run_id for one in (await agent.well(agent.tool("list all runs")))["runs"])
