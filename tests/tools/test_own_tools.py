"""An author's own tools: plain coroutine functions, in every group, beside the toolsets and never in their place."""

import asyncio
import json
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from hermes_rl import ConfigError, ToolHostError, ToolUseError, tool
from hermes_rl.rollout.group import run_group
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import Tool
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import Calls, Reply, ScriptedModel, Text, always, calls_then_text


@tool
async def look_up(city: str, unit: str = "C") -> dict[str, Any]:
    """Tell how warm it is.

    Args:
        city: Where.
        unit: C or F.
    """
    if city == "Atlantis":
        raise ToolUseError("there is no such city; ask for one that exists")
    if city == "Storm":
        raise ToolHostError("down", "the weather service is down")
    return {"city": city, "degrees": 7, "unit": unit}


@tool
async def leave(session: ToolSession, number: int) -> str:
    """Leave a number in the sandbox."""
    sandbox = await session.sandbox()
    await sandbox.write(f"{sandbox.workspace}/answer", str(number).encode())
    return "left"


class OwnEnv(FileEnv):
    default_toolsets: ClassVar[tuple[str, ...]] = ()
    own_tools: ClassVar[tuple[Tool, ...]] = (look_up, leave)


class BothEnv(OwnEnv):
    default_toolsets = ("terminal",)


def names(model: ScriptedModel) -> list[str]:
    return [one["function"]["name"] for one in model.bodies[0]["tools"]]


def looks_up_and_leaves(request: dict[str, Any]) -> Reply:
    match [message["content"] for message in request["messages"] if message["role"] == "tool"]:
        case []:
            return Calls([("look_up", '{"city": "Brno"}')])
        case [told]:
            return Calls([("leave", json.dumps({"number": json.loads(told)["degrees"]}))])
    return Text("done")


async def test_an_agent_uses_the_authors_tools() -> None:
    async with ScriptedModel(looks_up_and_leaves) as model, opened(OwnEnv, model) as env:
        group = await run_group(env, {"number": 7}, size=2)
    assert group.scores == [1.0, 1.0]
    assert names(model) == ["look_up", "leave"]
    assert json.loads(group.rollouts[0].tool_uses[0].result) == {"city": "Brno", "degrees": 7, "unit": "C"}


async def test_they_stand_beside_the_toolsets_whatever_was_chosen() -> None:
    async with ScriptedModel(always(Text("done"))) as model, opened(BothEnv, model) as env:
        await run_group(env, {"number": 7}, size=1)
    assert names(model) == ["terminal", "process", "look_up", "leave"]
    async with ScriptedModel(always(Text("done"))) as model, opened(BothEnv, model, enabled_toolsets=["todo"]) as env:
        await run_group(env, {"number": 7}, size=1)
    assert names(model) == ["todo", "look_up", "leave"]


async def test_a_tool_without_the_session_starts_no_sandbox() -> None:
    async with ScriptedModel(always(Text("done"))) as model, opened(OwnEnv, model) as env:
        outcome = await env.tools.session("rollout").call("look_up", {"city": "Brno"})
        assert (outcome.error, env.tools.pool.live) == (None, 0)


async def test_a_verifier_can_call_them_too() -> None:
    class Asking(OwnEnv):
        async def compute_reward(self, item: Any, result: Any, ctx: Any) -> float:
            return float(json.loads(ctx.call_tool("look_up", {"city": "Brno"}))["degrees"])

    async with ScriptedModel(always(Text("done"))) as model, opened(Asking, model) as env:
        assert (await run_group(env, {"number": 7}, size=1)).scores == [7.0]


async def test_what_the_author_refuses_is_told_to_the_model() -> None:
    script = calls_then_text("look_up", '{"city": "Atlantis"}')
    async with ScriptedModel(script) as model, opened(OwnEnv, model) as env:
        [rollout] = (await run_group(env, {"number": 7}, size=1)).rollouts
    assert (rollout.score, rollout.tool_uses[0].error) == (0.0, "there is no such city; ask for one that exists")


async def test_what_the_world_does_to_an_authors_tool_leaves_the_rollout_unscored() -> None:
    script = calls_then_text("look_up", '{"city": "Storm"}')
    async with ScriptedModel(script) as model, opened(OwnEnv, model) as env:
        [rollout] = (await run_group(env, {"number": 7}, size=1)).rollouts
    assert str(rollout.failure) == "tool/down"


async def test_two_environments_at_once_have_each_their_own() -> None:
    async def told(environment: type[FileEnv]) -> list[str]:
        async with ScriptedModel(always(Text("done"))) as model, opened(environment, model) as env:
            await run_group(env, {"number": 7}, size=2)
            return names(model)

    own, files = await asyncio.gather(told(OwnEnv), told(FileEnv))
    assert own == ["look_up", "leave"]
    assert files == ["terminal", "process", "read_file", "write_file", "patch", "search_files"]


@tool
async def read_file(path: str) -> str:
    """One of another name would do."""
    return path


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ((read_file,), "two tools are named read_file, from hermes-rl and from own_tools; rename one of them"),
        ((look_up, replace(leave, name="look_up")), "two tools are named look_up, from own_tools and from own_tools"),
    ],
)
async def test_a_name_that_is_taken_is_refused_at_the_start(own: tuple[Tool, ...], told: str) -> None:
    class Clashing(OwnEnv):
        own_tools = own

    async with ScriptedModel(always(Text("done"))) as model:
        with pytest.raises(ConfigError, match=told):
            async with opened(Clashing, model):
                pass


# What `@tool` takes.


def test_a_tool_without_the_session_shows_every_parameter() -> None:
    assert list(look_up.schema["function"]["parameters"]["properties"]) == ["city", "unit"]
    assert list(leave.schema["function"]["parameters"]["properties"]) == ["number"]
    assert (look_up.sandboxed, leave.sandboxed) == (False, True)


def test_a_function_that_is_no_coroutine_is_refused() -> None:
    def plain(x: int) -> int:
        return x

    with pytest.raises(TypeError, match="'plain' is not a coroutine function; write it as `async def`"):
        tool(plain)  # type: ignore[arg-type]


def test_a_parameter_without_a_type_or_a_name_is_refused() -> None:
    async def untyped(x) -> None:  # type: ignore[no-untyped-def]
        """Take anything."""

    async def many(**options: int) -> None:
        """Take them all."""

    for function, told in ((untyped, "x does not have both"), (many, r"\*\*options: int does not have both")):
        with pytest.raises(TypeError, match=told):
            tool(function)
