"""A rollout is scored, or it has a failure that says whose fault it was; it never takes others with it."""

import asyncio
import json
import math
from collections import Counter
from typing import Any

import pytest

from hermes_rl import AgentResult, ToolContext
from hermes_rl.core.errors import ConfigError, JudgeError, SandboxError
from hermes_rl.core.trajectory import Group, Span, StopReason
from hermes_rl.rollout.group import rollout_seed, run_group
from hermes_rl.rollout.sampler import content_id
from hermes_rl.sandbox.backends.bubblewrap import BubblewrapBackend
from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.sandbox.spec import SandboxSpec
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import (
    Calls,
    Delayed,
    EmptyChoices,
    Garbage,
    Hang,
    Reset,
    ScriptedModel,
    Status,
    Text,
    Truncated,
)

ITEM = {"number": 7}


def writes_the_number(request: dict[str, Any]) -> Calls | Text:
    """A model that does as it is told in one call, then says so."""
    if request["messages"][-1]["role"] == "tool":
        return Text("done")
    number = request["messages"][-1]["content"].split()[-1]
    return Calls([("terminal", json.dumps({"command": f"echo {number} > answer"}))])


async def group_of(script: Any, environment: type[FileEnv] = FileEnv, size: int = 2, **config: Any) -> Group:
    async with ScriptedModel(script) as model, opened(environment, model, **config) as env:
        return await run_group(env, ITEM, size=size)


def causes(group: Group) -> Counter[str]:
    return Counter(str(rollout.failure) for rollout in group.rollouts)


async def test_a_rollout_is_scored_by_what_it_left_in_its_sandbox() -> None:
    group = await group_of(writes_the_number)
    assert group.scores == [1.0, 1.0]
    rollout = group.rollouts[0]
    assert (rollout.stop_reason, rollout.turns_used) == (StopReason.NATURAL, 2)
    assert {timing.span for timing in rollout.timings} == {Span.MODEL, Span.TOOL, Span.SANDBOX, Span.VERIFIER}


async def test_rollouts_of_a_group_have_sandboxes_of_their_own() -> None:
    def only_the_first_seed_writes(request: dict[str, Any]) -> Calls | Text:
        if request["seed"] == rollout_seed(0, "train", content_id(ITEM), 0) + 1:
            return writes_the_number(request)
        return Text("I did nothing")

    assert (await group_of(only_the_first_seed_writes)).scores == [1.0, 0.0]


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (Status(500), "endpoint/http_500"),
        (Status(429), "endpoint/http_429"),
        (Status(400), "endpoint/http_400"),
        (Truncated(), "endpoint/bad_response"),
        (Garbage(), "endpoint/bad_response"),
        (EmptyChoices(), "endpoint/empty_choices"),
        (Reset(), "endpoint/connection"),
    ],
)
async def test_a_broken_endpoint_gives_no_score(reply: Any, cause: str) -> None:
    group = await group_of(lambda _: reply)
    assert (group.scores, causes(group)) == ([], {cause: 2})


async def test_a_dead_endpoint_gives_no_score_where_outages_do_not_pause() -> None:
    async with ScriptedModel(writes_the_number) as model, opened(FileEnv, model) as env:
        env.server.outage.limit = 0
        await model.__aexit__(None, None, None)
        group = await run_group(env, ITEM, size=2)
    assert (group.scores, causes(group)) == ([], {"endpoint/connection": 2})


async def test_a_hanging_endpoint_gives_no_score() -> None:
    async with ScriptedModel(lambda _: Hang()) as model, opened(FileEnv, model) as env:
        for server in env.server.servers:
            server.config.timeout = 0.3
        group = await run_group(env, ITEM, size=2)
    assert (group.scores, causes(group)) == ([], {"endpoint/timeout": 2})


async def test_a_rollout_past_its_time_gives_no_score() -> None:
    group = await group_of(lambda _: Hang(), worker_timeout=0.3)
    assert (group.scores, causes(group)) == ([], {"framework/worker_timeout": 2})


async def test_a_sandbox_idle_for_longer_than_its_lifetime_gives_no_score() -> None:
    def slow_after_the_tool(request: dict[str, Any]) -> Any:
        after_tool = request["messages"][-1]["role"] == "tool"
        return Delayed(2.5, Text("done")) if after_tool else writes_the_number(request)

    group = await group_of(slow_after_the_tool, terminal_lifetime=1)
    assert (group.scores, causes(group)) == ([], {"sandbox/idle": 2})


async def test_an_endpoint_that_fails_later_keeps_the_messages_so_far() -> None:
    def fails_after_the_tool(request: dict[str, Any]) -> Any:
        return Status(503) if request["messages"][-1]["role"] == "tool" else writes_the_number(request)

    (rollout, _) = (await group_of(fails_after_the_tool)).rollouts
    assert rollout.score is None
    assert [message["role"] for message in rollout.messages] == ["user", "assistant", "tool"]


async def test_a_sandbox_that_cannot_start_gives_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedModel(writes_the_number) as model, opened(FileEnv, model) as env:

        async def refuses(self: BubblewrapBackend, spec: SandboxSpec | None = None) -> Sandbox:
            raise SandboxError("start", "no more user namespaces")

        monkeypatch.setattr(BubblewrapBackend, "start", refuses)
        group = await run_group(env, ITEM, size=2)
    assert (group.scores, causes(group)) == ([], {"sandbox/start": 2})


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (math.nan, "verifier/not_finite"),
        (math.inf, "verifier/not_finite"),
        (None, "verifier/not_a_number"),
        ("1.0", "verifier/not_a_number"),
    ],
)
async def test_a_score_that_is_no_finite_number_is_no_score(value: Any, cause: str) -> None:
    class Returns(FileEnv):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            return value  # type: ignore[no-any-return]

    group = await group_of(writes_the_number, Returns)
    assert (group.scores, causes(group)) == ([], {cause: 2})


async def test_a_reward_that_raises_gives_no_score() -> None:
    class Raises(FileEnv):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            raise ZeroDivisionError("in the reward")

    group = await group_of(writes_the_number, Raises)
    assert causes(group) == {"verifier/raised": 2}


def broken(*_: Any) -> Any:
    raise KeyError("question")


@pytest.mark.parametrize(
    ("method", "cause", "named"),
    [
        ("compute_reward", "verifier/raised", "compute_reward"),
        ("compute_group_rewards", "verifier/group_raised", "compute_group_rewards"),
        ("next_user_message", "environment/user", "next_user_message"),
        ("format_prompt", "environment/prompt", "building the prompt"),
        ("sandbox_spec", "environment/sandbox_spec", "sandbox_spec"),
        ("turn_limit", "environment/turn_limit", "turn_limit"),
    ],
)
async def test_an_error_in_an_authors_method_is_recorded_with_its_line(method: str, cause: str, named: str) -> None:
    async def broken_later(*_: Any) -> Any:
        broken()

    given = broken if method in {"format_prompt", "sandbox_spec", "turn_limit"} else broken_later
    group = await group_of(writes_the_number, type("Broken", (FileEnv,), {method: given}))
    line = broken.__code__.co_firstlineno + 1
    assert causes(group) == {cause: 2}
    failure = group.rollouts[0].failure
    assert failure is not None
    assert failure.message == f"{named} raised KeyError at test_rollout.py:{line}: 'question'"


async def test_a_judge_that_fails_is_the_judges_fault() -> None:
    class Judged(FileEnv):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            raise JudgeError("refused", "the judge gave no verdict")

    assert causes(await group_of(writes_the_number, Judged)) == {"judge/refused": 2}


async def test_a_prompt_that_raises_is_the_environments_fault() -> None:
    class Promptless(FileEnv):
        def format_prompt(self, item: Any) -> str:
            raise KeyError("question")

    assert causes(await group_of(writes_the_number, Promptless)) == {"environment/prompt": 2}


async def test_one_failed_rollout_leaves_the_others_scored() -> None:
    failing_seed = rollout_seed(0, "train", content_id(ITEM), 1) + 1

    def one_fails(request: dict[str, Any]) -> Any:
        return Status(500) if request["seed"] == failing_seed else writes_the_number(request)

    group = await group_of(one_fails, size=4)
    assert [rollout.score for rollout in group.rollouts] == [1.0, None, 1.0, 1.0]


async def test_a_sync_reward_and_a_bool_are_taken() -> None:
    class Plain(FileEnv):
        def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:  # type: ignore[override]
            return bool(ctx.terminal("test -e answer")["exit_code"] == 0)

    scores = (await group_of(writes_the_number, Plain)).scores
    assert scores == [1.0, 1.0]
    assert all(type(score) is float for score in scores)


async def test_the_policys_processes_are_dead_before_the_reward_looks() -> None:
    """A writer left behind would otherwise change the file while it is being scored."""

    class Slow(FileEnv):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            before = ctx.terminal("cat counter")["output"]
            await asyncio.sleep(0.5)
            return 1.0 if ctx.terminal("cat counter")["output"] == before else 0.0

    def leaves_a_writer(request: dict[str, Any]) -> Calls | Text:
        if request["messages"][-1]["role"] == "tool":
            return Text("done")
        writer = "setsid bash -c 'for i in $(seq 1000); do echo $i > counter; sleep 0.05; done' >/dev/null 2>&1 &"
        return Calls([("terminal", json.dumps({"command": f"echo 0 > counter; {writer} sleep 0.2"}))])

    assert (await group_of(leaves_a_writer, Slow)).scores == [1.0, 1.0]


async def test_no_sandbox_outlives_its_rollout() -> None:
    async with ScriptedModel(writes_the_number) as model, opened(FileEnv, model) as env:
        await run_group(env, ITEM, size=4)
        assert env.tools.pool.live == 0


async def test_no_sandbox_outlives_a_cancelled_rollout() -> None:
    sleeps = Calls([("terminal", json.dumps({"command": "sleep 60"}))])
    async with ScriptedModel(lambda _: sleeps) as model, opened(FileEnv, model) as env:
        cancelled = asyncio.create_task(run_group(env, ITEM, size=4))
        while env.tools.pool.live < 4:
            await asyncio.sleep(0.05)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert env.tools.pool.live == 0


async def test_two_environments_in_one_process_do_not_see_each_other() -> None:
    class Other(FileEnv):
        default_toolsets = ("file",)

    async with (
        ScriptedModel(writes_the_number) as model,
        opened(FileEnv, model) as one,
        opened(Other, model, seed=1) as other,
    ):
        first, second = await asyncio.gather(run_group(one, ITEM, size=2), run_group(other, ITEM, size=2))
    assert "terminal" in first.tools
    assert "terminal" not in second.tools
    assert (first.scores, second.scores) == ([1.0, 1.0], [0.0, 0.0])


async def test_seeds_repeat_and_differ() -> None:
    first, again = await group_of(writes_the_number), await group_of(writes_the_number)
    other = await group_of(writes_the_number, seed=1)
    seeds = [rollout.seed for rollout in first.rollouts]
    assert seeds == [rollout.seed for rollout in again.rollouts]
    assert len({*seeds, *(rollout.seed for rollout in other.rollouts)}) == 4


async def test_an_unknown_toolset_is_an_error_that_lists_them() -> None:
    with pytest.raises(ConfigError, match=r"no toolset is named 'shell'; known: .*file, .*terminal"):
        await group_of(writes_the_number, enabled_toolsets=["shell"])


async def test_collect_trajectories_gives_atropos_columns() -> None:
    async with ScriptedModel(writes_the_number) as model, opened(FileEnv, model, group_size=2) as env:
        columns, backlog = await env.collect_trajectories(ITEM)
        one, _ = await env.collect_trajectory(ITEM)
    assert columns is not None
    assert one is not None
    assert (columns["scores"], columns["tokens"], backlog) == ([1.0, 1.0], None, [])
    assert one["scores"] == 1.0
    assert one["messages"][-1]["content"] == "done"


async def test_a_machine_that_the_backend_cannot_hold_is_the_environments_fault() -> None:
    class WantsRoot(FileEnv):
        def sandbox_spec(self, item: Any) -> SandboxSpec:
            return SandboxSpec(user="root")

    async with ScriptedModel(writes_the_number) as model, opened(WantsRoot, model) as env:
        group = await run_group(env, ITEM, size=2)
    assert (group.scores, causes(group)) == ([], {"environment/sandbox_spec": 2})
    assert "the user root" in str(group.rollouts[0].failure and group.rollouts[0].failure.message)


async def test_a_configured_limit_that_cannot_be_held_is_refused_before_the_first_rollout() -> None:
    async with ScriptedModel(writes_the_number) as model:
        with pytest.raises(ConfigError, match="a limit on memory_mb"):
            async with opened(FileEnv, model, terminal_backend="local", sandbox_memory_mb=64):
                pytest.fail("it must not open")


async def test_files_and_setup_of_an_items_machine_are_there_for_the_agent_and_the_reward() -> None:
    class Furnished(FileEnv):
        def sandbox_spec(self, item: Any) -> SandboxSpec:
            return SandboxSpec(files={"given.txt": f"number {item['number']}"}, setup="cp given.txt copied.txt")

        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            return float(ctx.terminal("cat copied.txt")["output"] == f"number {item['number']}")

    async with ScriptedModel(writes_the_number) as model, opened(Furnished, model) as env:
        assert (await run_group(env, ITEM, size=2)).scores == [1.0, 1.0]


async def test_an_item_may_have_a_turn_limit_of_its_own() -> None:
    class OneTurn(FileEnv):
        def turn_limit(self, item: Any) -> int:
            return 1

    group = await group_of(writes_the_number, OneTurn)
    assert group.scores == [1.0, 1.0]
    assert {(rollout.stop_reason, rollout.turns_used) for rollout in group.rollouts} == {(StopReason.MAX_TURNS, 1)}


async def test_a_turn_limit_that_raises_is_the_environments_fault() -> None:
    class Broken(FileEnv):
        def turn_limit(self, item: Any) -> int:
            return int(item["turns"])

    assert causes(await group_of(writes_the_number, Broken)) == {"environment/turn_limit": 2}


async def test_a_policy_that_sleeps_is_ended_and_scored() -> None:
    def sleeps(request: dict[str, Any]) -> Any:
        return Calls([("terminal", '{"command": "sleep 600", "timeout": 600}')])

    async with ScriptedModel(sleeps) as model, opened(FileEnv, model, worker_timeout=8) as env:
        group = await run_group(env, ITEM, size=1)
    assert (group.scores, group.rollouts[0].stop_reason) == ([0.0], StopReason.DEADLINE)
