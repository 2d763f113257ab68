"""Forks of recorded rollouts: the same sandbox and state at a turn, and a model that goes on from there."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hermes_rl import AgentResult, ConfigError, ToolContext, tool
from hermes_rl.core.trajectory import Group
from hermes_rl.evaluation.fork import Fork, fork_rollout, fork_summary
from hermes_rl.rollout.generate import generate_groups
from hermes_rl.store.records import read_groups
from hermes_rl.tools.session import ToolSession
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import Calls, ScriptedModel, Text


def counts(request: dict[str, Any]) -> Text | Calls:
    """Adds a line to a file in each of three turns, then says how many there are."""
    turn = sum(message["role"] == "assistant" for message in request["messages"])
    if turn < 3:
        return Calls([("terminal", json.dumps({"command": f"echo {turn} >> lines; wc -l < lines"}))])
    return Text("done")


class Lines(FileEnv):
    """Scored by the number of lines in the file."""

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
        return float(ctx.terminal("wc -l < lines")["output"])


async def recorded(environment: type[FileEnv], path: Path) -> Group:
    async with ScriptedModel(counts) as model, opened(environment, model, total_steps=1, group_size=2) as env:
        await generate_groups(env, path)
    return next(iter(read_groups(path)))


async def forked(
    environment: type[FileEnv], group: Group, fork: Fork, answer: Any
) -> tuple[Group, list[dict[str, Any]]]:
    requests: list[dict[str, Any]] = []

    def answered(request: dict[str, Any]) -> Text | Calls:
        requests.append(request)
        reply: Text | Calls = answer(request)
        return reply

    async with ScriptedModel(answered) as model, opened(environment, model) as env:
        return await fork_rollout(env, group, fork), requests


async def test_a_fork_has_the_files_of_its_turn_and_continues_the_conversation(tmp_path: Path) -> None:
    group = await recorded(Lines, tmp_path / "groups.jsonl")
    assert group.scores == [3.0, 3.0]
    # The first two turns added two lines; the model adds another two in one call and stops.
    twice = Calls([("terminal", json.dumps({"command": "echo a >> lines; echo b >> lines"}))])
    made, requests = await forked(
        Lines,
        group,
        Fork(rollout=1, turn=3, count=2),
        lambda request: Text("end") if len(request["messages"]) > 6 else twice,
    )
    assert made.scores == [4.0, 4.0]
    first = made.rollouts[0]
    assert first.messages[:5] == group.rollouts[1].messages[:5]
    assert first.turns_used == 4
    assert [use.turn for use in first.tool_uses] == [1, 2, 3]
    assert first.metadata["fork"] == {"group": group.id, "rollout": 1, "turn": 3}
    assert first.metadata["prompt_length"] == 1
    assert made.id != group.id
    assert len({rollout.seed for rollout in made.rollouts}) == 2
    assert [message["role"] for message in requests[0]["messages"]] == ["user", *["assistant", "tool"] * 2]


async def test_an_edit_replaces_the_message_before_the_turn(tmp_path: Path) -> None:
    group = await recorded(Lines, tmp_path / "groups.jsonl")
    made, requests = await forked(Lines, group, Fork(0, 2, edit="disk full"), lambda _: Text("I stop"))
    assert requests[0]["messages"][-1]["content"] == "disk full"
    assert made.scores == [1.0]
    assert made.rollouts[0].metadata["fork"]["edit"] == "disk full"


async def test_an_edit_of_what_the_user_said_is_not_compared_with_the_record(tmp_path: Path) -> None:
    class Asks(Counter):
        async def next_user_message(self, item: Any, messages: list[Any], session: Any = None) -> str | None:
            session.state["count"] += 1
            return f"and {session.state['count']}?" if session.state["count"] < 3 else None

    path = tmp_path / "groups.jsonl"
    async with ScriptedModel(lambda _: Text("ok")) as model, opened(Asks, model, total_steps=1, group_size=1) as env:
        await generate_groups(env, path)
    group = next(iter(read_groups(path)))
    made, requests = await forked(Asks, group, Fork(0, 3, edit="and ten?"), lambda _: Text("ok"))
    assert made.rollouts[0].failure is None
    assert [message["content"] for message in requests[0]["messages"][1:]] == ["ok", "and 1?", "ok", "and ten?"]


async def test_a_difference_in_the_replay_refuses_the_fork_and_is_shown(tmp_path: Path) -> None:
    group = await recorded(Lines, tmp_path / "groups.jsonl")
    uses = tuple(use._replace(result=use.result.replace("2", "7")) for use in group.rollouts[0].tool_uses)
    changed = replace(group, rollouts=(replace(group.rollouts[0], tool_uses=uses),))
    made, requests = await forked(Lines, changed, Fork(0, 3), lambda _: Text("never asked"))
    assert not requests
    failure = made.rollouts[0].failure
    assert str(failure) == "environment/replay"
    assert failure is not None and "turn 2, terminal" in failure.message and "7" in failure.message


async def test_declared_noise_is_no_difference(tmp_path: Path) -> None:
    class Noisy(Lines):
        replay_noise = (r"\d+",)

    group = await recorded(Lines, tmp_path / "groups.jsonl")
    uses = tuple(use._replace(result=use.result.replace("2", "7")) for use in group.rollouts[0].tool_uses)
    changed = replace(group, rollouts=(replace(group.rollouts[0], tool_uses=uses),))
    made, _ = await forked(Noisy, changed, Fork(0, 3), lambda _: Text("end"))
    assert made.scores == [2.0]


@pytest.mark.parametrize("command", ["date +%s%N", "cat /proc/sys/kernel/random/uuid"])
async def test_a_command_with_another_outcome_is_named_in_the_refusal(command: str, tmp_path: Path) -> None:
    def changing(request: dict[str, Any]) -> Text | Calls:
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        chosen = command if turn == 1 else "true"
        return Calls([("terminal", json.dumps({"command": chosen}))]) if turn < 3 else Text("done")

    path = tmp_path / "groups.jsonl"
    async with ScriptedModel(changing) as model, opened(Lines, model, total_steps=1, group_size=1) as env:
        await generate_groups(env, path)
    recorded_group = next(iter(read_groups(path)))
    made, requests = await forked(Lines, recorded_group, Fork(0, 4), lambda _: Text("never asked"))
    failure = made.rollouts[0].failure
    assert failure is not None and not requests
    assert "turn 2, terminal" in failure.message and command in failure.message


class Counter(FileEnv):
    """A game without a sandbox: its tool counts in the state."""

    default_toolsets = ()

    def initial_state(self, item: Any) -> dict[str, int]:
        return {"count": 0}

    @tool(sandboxed=False)
    async def add(self, session: ToolSession, number: int) -> int:
        """Add a number.

        Args:
            number: what to add
        """
        session.state["count"] += number
        return int(session.state["count"])

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
        return float(ctx.state["count"])


def adds(request: dict[str, Any]) -> Text | Calls:
    turn = sum(message["role"] == "assistant" for message in request["messages"])
    return Calls([("add", json.dumps({"number": 10**turn}))]) if turn < 3 else Text("done")


async def test_the_state_is_rebuilt_without_a_sandbox(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    async with ScriptedModel(adds) as model, opened(Counter, model, total_steps=1, group_size=1) as env:
        await generate_groups(env, path)
    group = next(iter(read_groups(path)))
    assert group.scores == [111.0]
    made, _ = await forked(Counter, group, Fork(0, 3), lambda _: Text("enough"))
    assert made.scores == [11.0]


@pytest.mark.parametrize(
    ("fork", "said"), [(Fork(0, 9), "turns 1 to 4"), (Fork(5, 1), "rollouts 0 to 1"), (Fork(0, 0), "turns 1 to 4")]
)
async def test_a_turn_or_a_rollout_that_is_not_there_is_refused(fork: Fork, said: str, tmp_path: Path) -> None:
    group = await recorded(Lines, tmp_path / "groups.jsonl")
    with pytest.raises(ConfigError, match=said):
        await forked(Lines, group, fork, lambda _: Text("never asked"))


async def test_a_tool_that_the_environment_no_longer_has_is_refused_with_the_setting(tmp_path: Path) -> None:
    class WithoutIt(FileEnv):
        default_toolsets = ()

    path = tmp_path / "groups.jsonl"
    async with ScriptedModel(adds) as model, opened(Counter, model, total_steps=1, group_size=1) as env:
        await generate_groups(env, path)
    group = next(iter(read_groups(path)))
    with pytest.raises(ConfigError, match=r"used add, .*--env\.enabled_toolsets"):
        await forked(WithoutIt, group, Fork(0, 3), lambda _: Text("never asked"))
    made, _ = await forked(WithoutIt, group, Fork(0, 1), lambda _: Text("end"))
    assert made.rollouts[0].metadata["fork"]["turn"] == 1


async def test_calls_that_a_replay_does_not_repeat_are_counted(tmp_path: Path) -> None:
    class Planning(Lines):
        default_toolsets = ("terminal", "todo")

    def plans(request: dict[str, Any]) -> Text | Calls:
        done = any(message["role"] == "tool" for message in request["messages"])
        return Text("done") if done else Calls([("todo", json.dumps({})), ("terminal", '{"command": "true"}')])

    path = tmp_path / "groups.jsonl"
    async with ScriptedModel(plans) as model, opened(Planning, model, total_steps=1, group_size=1) as env:
        await generate_groups(env, path)
    made, _ = await forked(Planning, next(iter(read_groups(path))), Fork(0, 2), lambda _: Text("end"))
    assert made.rollouts[0].metadata["fork"]["not_repeated"] == {"todo": 1}


async def test_a_summary_has_the_first_difference(tmp_path: Path) -> None:
    group = await recorded(Lines, tmp_path / "groups.jsonl")
    uses = tuple(use._replace(result=use.result.replace("1", "9")) for use in group.rollouts[0].tool_uses)
    changed = replace(group, rollouts=(replace(group.rollouts[0], tool_uses=uses),))
    made, _ = await forked(Lines, changed, Fork(0, 3, count=2), lambda _: Text("never asked"))
    summary = fork_summary(changed.rollouts[0], made)
    assert summary["scores"] == [] and len(summary["failures"]) == 2
    assert all("environment/replay: " in said and "turn 1, terminal" in said for said in summary["failures"])
