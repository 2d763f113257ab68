"""The agent's own list: one for each rollout, whole in every answer, and nothing in it that was not checked."""

import json
from typing import Any

import pytest

from hermes_rl.core import fast_json
from hermes_rl.rollout.group import run_group
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.todo import MAX_TASKS
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import Calls, Reply, ScriptedModel, Text
from tests.tools.conftest import Call


def task(name: str, status: str = "pending", content: str = "do it") -> dict[str, str]:
    return {"id": name, "content": content, "status": status}


async def test_a_list_that_was_never_written_is_empty(call: Call) -> None:
    assert await call("todo") == {
        "todos": [],
        "summary": {"total": 0, "pending": 0, "in_progress": 0, "completed": 0, "cancelled": 0},
    }


async def test_what_was_written_is_read_again_in_its_order_and_counted(call: Call) -> None:
    tasks = [task("b", "in_progress"), task("a"), task("c", "completed"), task("d", "cancelled"), task("e")]
    await call("todo", todos=tasks)
    answer = await call("todo")
    assert answer["todos"] == tasks
    assert answer["summary"] == {"total": 5, "pending": 2, "in_progress": 1, "completed": 1, "cancelled": 1}


async def test_writing_replaces_the_list(call: Call) -> None:
    await call("todo", todos=[task("a"), task("b")])
    assert (await call("todo", todos=[task("c")]))["todos"] == [task("c")]


async def test_merging_changes_tasks_in_place_and_adds_the_others(call: Call) -> None:
    await call("todo", todos=[task("a"), task("b")])
    answer = await call("todo", todos=[task("c"), task("a", "completed")], merge=True)
    assert answer["todos"] == [task("a", "completed"), task("b"), task("c")]


async def test_an_empty_list_clears_it(call: Call) -> None:
    await call("todo", todos=[task("a")])
    assert (await call("todo", todos=[]))["todos"] == []


@pytest.mark.parametrize(
    ("todos", "told"),
    [
        ([task("a", "done")], "todos.0.status: Input should be 'pending', 'in_progress', 'completed' or 'cancelled'"),
        ([{"id": "a", "status": "pending"}], "todos.0.content: Field required"),
        ([task("")], "todos.0.id: String should have at least 1 character"),
        ([task("a", content="x" * 3_000)], "todos.0.content: String should have at most 2000 characters"),
        ([task("a") | {"colour": "red"}], "todos.0.colour: Extra inputs are not permitted"),
        ([task("a"), task("b"), task("a")], "each id may occur once in todos; repeated: a"),
        ("buy milk", "todos: Input should be a valid list"),
        ([task(str(number)) for number in range(MAX_TASKS + 1)], "should have at most 200 items"),
    ],
)
async def test_a_wrong_list_is_refused_and_nothing_is_changed(session: ToolSession, todos: Any, told: str) -> None:
    await session.call("todo", {"todos": [task("before")]})
    assert told in ((await session.call("todo", {"todos": todos})).error or "")
    assert fast_json.loads((await session.call("todo", {})).text)["todos"] == [task("before")]


async def test_a_merge_that_would_make_it_too_long_is_refused(session: ToolSession) -> None:
    await session.call("todo", {"todos": [task(str(number)) for number in range(MAX_TASKS)]})
    outcome = await session.call("todo", {"todos": [task("one more")], "merge": True})
    assert outcome.error == "the list would hold 201 tasks; 200 at most"


async def test_rollouts_do_not_see_each_others_lists(host: ToolHost) -> None:
    await host.session("one").call("todo", {"todos": [task("a")]})
    assert fast_json.loads((await host.session("other").call("todo", {})).text)["todos"] == []


async def test_keeping_a_list_starts_no_sandbox(host: ToolHost, session: ToolSession) -> None:
    await session.call("todo", {"todos": [task("a")]})
    assert host.pool.live == 0


class TodoEnv(FileEnv):
    default_toolsets = ("todo", "terminal")


async def test_an_agent_keeps_its_list_over_several_turns() -> None:
    plan = [
        ("todo", {"todos": [task("write", "in_progress"), task("check")]}),
        ("terminal", {"command": "echo 7 > answer"}),
        ("todo", {"todos": [task("write", "completed")], "merge": True}),
    ]

    def script(request: dict[str, Any]) -> Reply:
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        return Text("done") if turn == len(plan) else Calls([(plan[turn][0], json.dumps(plan[turn][1]))])

    async with ScriptedModel(script) as model, opened(TodoEnv, model) as env:
        group = await run_group(env, {"number": 7}, size=2)
    assert group.scores == [1.0, 1.0]
    for rollout in group.rollouts:
        assert json.loads(rollout.tool_uses[-1].result)["todos"] == [task("write", "completed"), task("check")]
