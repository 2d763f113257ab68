"""A program is an agent like our loop: scored for what the policy did, unscored for what the world did."""

import asyncio
import errno
import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from hermes_rl import ConfigError
from hermes_rl.agent.harnesses.installer import agents_home
from hermes_rl.agent.harnesses.registry import get_agent
from hermes_rl.core.trajectory import Rollout, Span, StopReason
from hermes_rl.rollout.group import run_group
from tests.rollout.external.programs import (
    ITEM,
    SMALL,
    SMALL_AGENT,
    group_of,
    python,
    rollout_of,
    writes_the_number,
)
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import Calls, Hang, ScriptedModel, Status, Text, always

HELLO = always(Text("hello"))


def program(rollout: Rollout) -> dict[str, Any]:
    told: dict[str, Any] = rollout.metadata["program"]
    return told


async def test_a_program_does_the_task_and_is_scored_by_what_it_left() -> None:
    group = await group_of(writes_the_number, 2, **SMALL)
    assert group.scores == [1.0, 1.0]


async def test_the_record_shows_the_agents_own_conversation() -> None:
    rollout = await rollout_of(writes_the_number, **SMALL)
    assert [message["role"] for message in rollout.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert rollout.messages[0]["content"] == "You are small."
    assert [(use.turn, use.name) for use in rollout.tool_uses] == [(1, "bash")]
    assert (rollout.stop_reason, rollout.turns_used) == (StopReason.NATURAL, 2)
    assert rollout.usage.completion_tokens
    assert {timing.span for timing in rollout.timings} >= {Span.MODEL, Span.SANDBOX, Span.VERIFIER}


async def test_the_reward_sees_the_conversation_and_the_end_of_the_program() -> None:
    seen: list[Any] = []

    class Looks(FileEnv):
        async def compute_reward(self, item: Any, result: Any, ctx: Any) -> float:
            seen.append((result.final_response, result.tools_used, result.finished_naturally, result.program.exit_code))
            return await super().compute_reward(item, result, ctx)  # type: ignore[return-value]

    await rollout_of(writes_the_number, Looks, **SMALL)
    assert seen == [("done", ["bash"], True, 0)]


async def test_sampling_is_the_runs_whatever_the_agent_asks_for() -> None:
    async with ScriptedModel(writes_the_number) as model, opened(FileEnv, model, agent_temperature=0.7, **SMALL) as env:
        await env.collect_group(ITEM)
        assert {body["temperature"] for body in model.bodies} == {0.7}


async def test_the_agent_has_its_own_tools_and_not_ours() -> None:
    group = await group_of(writes_the_number, **SMALL)
    assert group.tools == ("bash",)
    assert [schema["function"]["name"] for schema in group.tool_schemas] == ["bash"]
    assert "tool_schemas" not in group.rollouts[0].metadata
    assert [use.name for use in group.rollouts[0].tool_uses] == ["bash"]


async def test_output_and_exit_status_are_kept() -> None:
    rollout = await rollout_of(writes_the_number, **SMALL)
    assert (program(rollout)["exit_code"], program(rollout)["output"]) == (0, "done\n")


async def test_a_program_that_crashes_after_an_answer_is_scored() -> None:
    rollout = await rollout_of(HELLO, agent_command=python("ask('hi'); raise SystemExit(3)"))
    assert (rollout.score, rollout.stop_reason, program(rollout)["exit_code"]) == (0.0, StopReason.CRASHED, 3)


async def test_a_program_that_never_asks_has_no_score_and_its_last_words_are_told() -> None:
    rollout = await rollout_of(HELLO, agent_command="echo no module named agent >&2; exit 1")
    assert str(rollout.failure) == "environment/agent_command"
    assert rollout.failure is not None
    assert "no module named agent" in rollout.failure.message
    assert rollout.messages[-1]["content"] == "write 7"


async def test_a_program_that_never_exits_is_ended_at_the_policys_deadline_and_scored() -> None:
    hangs = "ask('hi'); print('going on', flush=True); import time; time.sleep(1000)"
    rollout = await rollout_of(HELLO, agent_command=python(hangs), rollout_deadline=1.0)
    assert (rollout.score, rollout.stop_reason) == (0.0, StopReason.DEADLINE)
    assert (program(rollout)["exit_code"], program(rollout)["output"]) == (None, "going on\n")


async def test_a_program_that_ignores_signals_and_forks_is_ended_with_all_it_started() -> None:
    class LooksAround(FileEnv):
        async def compute_reward(self, item: Any, result: Any, ctx: Any) -> float:
            return float(ctx.terminal("cat /proc/[0-9]*/comm | grep -c sleep")["output"].strip())

    stubborn = """
import os, signal, subprocess, time
for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(one, signal.SIG_IGN)
for _ in range(5): subprocess.Popen(["setsid", "sleep", "1000"])
ask('hi')
time.sleep(1000)
"""
    rollout = await rollout_of(HELLO, LooksAround, agent_command=python(stubborn), rollout_deadline=1.0)
    assert (rollout.score, rollout.stop_reason) == (0.0, StopReason.DEADLINE)


async def test_time_before_the_first_answer_is_not_the_policys() -> None:
    slow = "import time; time.sleep(2); ask('hi')"
    rollout = await rollout_of(HELLO, agent_command=python(slow), rollout_deadline=1.0)
    assert rollout.stop_reason is StopReason.NATURAL


async def test_a_last_answer_that_uses_the_time_up_leaves_time_to_exit() -> None:
    exits = "ask('hi'); import time; time.sleep(2)"
    rollout = await rollout_of(always(Text("word " * 1000)), agent_command=python(exits), rollout_deadline=1.0)
    assert rollout.stop_reason is StopReason.NATURAL


async def test_a_program_that_floods_its_output_is_read_only_so_far() -> None:
    flood = "ask('hi')\nfor _ in range(2000): print('x' * 10_000)"
    rollout = await rollout_of(HELLO, agent_command=python(flood))
    assert rollout.stop_reason is StopReason.NATURAL
    assert len(program(rollout)["output"]) < 20_000
    assert "and more left out" in program(rollout)["output"]


async def test_a_program_is_ended_when_it_asks_more_often_than_it_may() -> None:
    insists = """
import time
while True:
    try: ask('hi')
    except OSError: time.sleep(0.1)
"""
    async with ScriptedModel(HELLO) as model:
        async with opened(FileEnv, model, agent_command=python(insists), max_agent_turns=3) as env:
            group = await env.collect_group(ITEM)
        assert model.requests == 3 * len(group.rollouts)
    assert {rollout.stop_reason for rollout in group.rollouts} == {StopReason.MAX_TURNS}


async def test_an_endpoint_that_fails_makes_the_rollout_a_failure_however_the_program_takes_it() -> None:
    shrugs = """
import time
try: ask('hi')
except OSError: time.sleep(1000)
"""
    rollout = await rollout_of(always(Status(500)), agent_command=python(shrugs))
    assert rollout.failure is not None
    assert rollout.failure.whose == "endpoint"


async def test_an_endpoint_that_hangs_costs_the_policy_nothing() -> None:
    rollout = await rollout_of(always(Hang()), agent_command=python("ask('hi')"), worker_timeout=4, rollout_deadline=1)
    assert str(rollout.failure) == "framework/worker_timeout"


async def test_an_agent_that_hangs_up_and_ends_is_no_failure() -> None:
    def slow_the_second_time(request: dict[str, Any]) -> Text | Hang:
        return Hang() if request["messages"][-1]["content"] == "again" else Text("hello")

    hangs_up = """
ask('hi')
import http.client
line = http.client.HTTPConnection(os.environ["OPENAI_BASE_URL"].split("/")[2])
body = json.dumps({"model": "any", "messages": [{"role": "user", "content": "again"}]})
line.request("POST", "/v1/chat/completions", body, {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
import time; time.sleep(0.5); line.close()
"""
    rollout = await rollout_of(slow_the_second_time, agent_command=python(hangs_up))
    assert (rollout.stop_reason, rollout.turns_used) == (StopReason.NATURAL, 1)


async def test_a_hundred_calls_at_once_are_all_answered() -> None:
    crowd = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(100) as threads: print(len(list(threads.map(ask, map(str, range(100))))))
"""
    rollout = await rollout_of(HELLO, agent_command=python(crowd), max_agent_turns=100)
    assert (program(rollout)["output"], rollout.turns_used) == ("100\n", 100)


async def test_a_setup_and_files_are_there_when_the_program_starts() -> None:
    rollout = await rollout_of(
        writes_the_number,
        agent_command=["env", "PROMPT_FILE={prompt_file}", "python3", "installed.py"],
        agent_files={"given.py": str(SMALL_AGENT)},
        agent_setup="cp given.py installed.py",
    )
    assert rollout.score == 1.0


async def test_a_ready_made_agent_is_seen_in_its_sandbox_and_started(monkeypatch: pytest.MonkeyPatch) -> None:
    with TemporaryDirectory() as home:
        Path(home).chmod(0o755)
        monkeypatch.setenv("HERMES_HOME", home)
        python = agents_home() / get_agent("sdk").folder_name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text('#!/bin/sh\nexec python3 "$@"\n')
        python.chmod(0o755)
        files = {"agent.py": str(SMALL_AGENT)}
        rollout = await rollout_of(writes_the_number, agent_command="agent:sdk", agent_files=files)
    assert rollout.score == 1.0


async def test_a_ready_made_agent_that_is_not_installed_is_told_before_the_first_rollout() -> None:
    with pytest.raises(ConfigError, match="agent install codex"):
        await rollout_of(HELLO, agent_command="agent:codex")


async def test_a_backend_that_isolates_nothing_will_do() -> None:
    rollout = await rollout_of(writes_the_number, terminal_backend="local", **SMALL)
    assert rollout.score == 1.0


async def test_a_gateway_that_cannot_be_reached_leaves_the_rollout_unscored(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(*_: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    def the_last_words(_: dict[str, Any]) -> Text:
        monkeypatch.setattr(socket, "socketpair", no_more)
        return Text("hello")

    rollout = await rollout_of(the_last_words, agent_command=python("ask('hi'); ask('hi')"))
    assert str(rollout.failure) == "framework/gateway"


async def test_nothing_is_left_of_a_rollout_that_is_cancelled() -> None:
    async with ScriptedModel(always(Hang())) as model, opened(FileEnv, model, **SMALL) as env:
        running = asyncio.create_task(run_group(env, ITEM, size=1))
        while not model.requests:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert env.gateway is not None
        assert (len(env.gateway.keys), env.tools.pool.live) == (0, 0)


async def test_our_loop_is_the_default() -> None:
    def writes(request: dict[str, Any]) -> Calls | Text:
        done = request["messages"][-1]["role"] == "tool"
        return Text("done") if done else Calls([("terminal", '{"command": "echo 7 > answer"}')])

    rollout = await rollout_of(writes)
    assert rollout.score == 1.0
    assert "program" not in rollout.metadata
