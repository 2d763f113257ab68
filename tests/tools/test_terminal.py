import asyncio
import time
from typing import Any

import pytest

from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.protocol import Backend
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.registry import all_tools
from hermes_rl.tools.session import BackgroundProcess, ToolSession
from hermes_rl.tools.terminal import MAX_OUTPUT_CHARS
from tests.tools.conftest import Call

# Commands.


async def test_a_command_gives_its_output_and_exit_code(call: Call) -> None:
    assert await call("terminal", command="echo out; echo err >&2; exit 3") == {
        "output": "out\nerr\n",
        "exit_code": 3,
        "error": None,
    }


async def test_a_command_that_fails_is_no_tool_error(session: ToolSession) -> None:
    assert (await session.call("terminal", {"command": "false"})).error is None


async def test_files_stay_between_commands(call: Call) -> None:
    await call("terminal", command="echo kept > file")
    assert (await call("terminal", command="cat file"))["output"] == "kept\n"


async def test_unicode_goes_in_and_comes_out(call: Call) -> None:
    assert (await call("terminal", command="echo 'žluť 日本 \U0001f600'"))["output"] == "žluť 日本 \U0001f600\n"


async def test_output_that_is_no_text_does_not_break_the_answer(call: Call) -> None:
    assert (await call("terminal", command=r"printf 'a\377\000b'"))["output"] == "a\ufffd\x00b"


async def test_a_command_that_takes_too_long_is_killed_and_said_so(call: Call) -> None:
    began = time.monotonic()
    answer = await call("terminal", command="echo before; sleep 60", timeout=1)
    assert answer == {"output": "before\n", "exit_code": 124, "error": "timed out after 1 s and was killed"}
    assert time.monotonic() - began < 30


async def test_a_timeout_is_told_as_an_error(session: ToolSession) -> None:
    outcome = await session.call("terminal", {"command": "sleep 60", "timeout": 1})
    assert outcome.error == "timed out after 1 s and was killed"


async def test_without_a_timeout_the_sessions_own_holds(backend: Backend) -> None:
    host = ToolHost(all_tools(), SandboxPool(backend), calls_in_flight=1, terminal_timeout=0.5)
    outcome = await host.session("rollout").call("terminal", {"command": "sleep 60"})
    await host.close()
    assert outcome.error == "timed out after 0.5 s and was killed"


async def test_a_timeout_of_zero_means_the_sessions_own(call: Call) -> None:
    assert (await call("terminal", command="echo x", timeout=0))["output"] == "x\n"


async def test_a_relative_workdir_starts_in_the_workspace(call: Call) -> None:
    await call("terminal", command="mkdir -p a/b")
    answer = await call("terminal", command='pwd; test "$PWD" = "$HOME/a/b" && echo right', workdir="a/b")
    assert answer["output"].endswith("/a/b\nright\n")


async def test_a_tilde_workdir_is_the_sandboxs_home(call: Call) -> None:
    await call("terminal", command="mkdir -p a")
    assert (await call("terminal", command="basename $PWD", workdir="~/a"))["output"] == "a\n"


async def test_a_workdir_that_is_missing_is_told(call: Call) -> None:
    answer = await call("terminal", command="echo ran", workdir="missing")
    assert "No such file or directory" in answer["output"]
    assert answer["exit_code"] != 0


async def test_of_long_output_the_beginning_and_the_end_are_shown(call: Call) -> None:
    output = (await call("terminal", command="echo first; yes | head -c 300000; echo last"))["output"]
    assert output.startswith("first\n")
    assert output.endswith("last\n")
    assert "characters left out" in output
    assert len(output) < MAX_OUTPUT_CHARS + 100


# Commands left running.


async def started(call: Call, command: str, **arguments: Any) -> str:
    answer = await call("terminal", command=command, background=True, **arguments)
    session_id: str = answer["session_id"]
    return session_id


async def state_when(call: Call, session_id: str, status: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while (state := await call("process", action="poll", session_id=session_id))["status"] != status:
            await asyncio.sleep(0.05)
    return state


async def test_a_background_command_answers_at_once(call: Call) -> None:
    began = time.monotonic()
    answer = await call("terminal", command="sleep 60", background=True)
    assert (answer["exit_code"], time.monotonic() - began < 30) == (0, True)


async def test_a_background_command_that_runs_is_said_to_run(call: Call) -> None:
    session_id = await started(call, "sleep 60")
    state = await call("process", action="poll", session_id=session_id)
    assert state == {"session_id": session_id, "command": "sleep 60", "status": "running", "exit_code": None}


async def test_a_background_command_that_ended_has_its_exit_code(call: Call) -> None:
    state = await state_when(call, await started(call, "exit 7"), "exited")
    assert state["exit_code"] == 7


async def test_waiting_returns_with_the_end_and_the_output(call: Call) -> None:
    session_id = await started(call, "echo one; sleep 0.3; echo two >&2")
    state = await call("process", action="wait", session_id=session_id)
    assert (state["status"], state["exit_code"], state["output"]) == ("exited", 0, "one\ntwo\n")


async def test_waiting_for_one_that_does_not_end_returns_in_time_and_leaves_it_running(call: Call) -> None:
    session_id = await started(call, "echo one; sleep 60")
    began = time.monotonic()
    state = await call("process", action="wait", session_id=session_id, timeout=1)
    assert (state["status"], state["output"]) == ("running", "one\n")
    assert time.monotonic() - began < 30


async def test_waiting_ends_with_the_policys_time(
    session: ToolSession, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_rl.tools.session.CALL_GRACE", 50.0)
    started = await call("terminal", command="sleep 60", background=True)
    session.time_left, session.terminal_timeout = 0.5, 60
    began = time.monotonic()
    state = await call("process", action="wait", session_id=started["session_id"], timeout=60)
    assert state["status"] == "running"
    assert time.monotonic() - began < 40


async def test_the_log_of_a_running_one_can_be_read(call: Call) -> None:
    session_id = await started(call, "echo so far 日本; sleep 60")
    async with asyncio.timeout(30):
        while not (state := await call("process", action="log", session_id=session_id))["output"]:
            await asyncio.sleep(0.05)
    assert (state["output"], state["status"]) == ("so far 日本\n", "running")


async def test_one_that_is_killed_before_it_has_its_own_session_ends_too(session: ToolSession, call: Call) -> None:
    late = await call("terminal", command="(sleep 1; exec setsid sleep 60) > /dev/null 2>&1 < /dev/null & echo $!")
    session.processes["late"] = BackgroundProcess("late", "sleep 60", int(late["output"]), "late.log", "late.exit")
    state = await call("process", action="kill", session_id="late")
    assert state["status"] == "killed"


async def test_killing_ends_it_with_its_children(call: Call) -> None:
    session_id = await started(call, "(sleep 2; echo alive > sign) & sleep 60")
    state = await call("process", action="kill", session_id=session_id)
    assert (state["status"], state["exit_code"]) == ("killed", None)
    await asyncio.sleep(2.5)
    assert (await call("terminal", command="ls"))["output"] == ""


async def test_waiting_for_one_that_was_killed_returns_at_once(call: Call) -> None:
    session_id = await started(call, "sleep 60")
    await call("process", action="kill", session_id=session_id)
    began = time.monotonic()
    assert (await call("process", action="wait", session_id=session_id, timeout=50))["status"] == "killed"
    assert time.monotonic() - began < 25


async def test_killing_one_that_ended_leaves_its_exit_code(call: Call) -> None:
    session_id = await started(call, "exit 7")
    await state_when(call, session_id, "exited")
    assert (await call("process", action="kill", session_id=session_id))["exit_code"] == 7


async def test_all_are_listed_in_the_order_they_were_started(call: Call) -> None:
    first, second = await started(call, "exit 0"), await started(call, "sleep 60")
    await state_when(call, first, "exited")
    listed = (await call("process", action="list"))["processes"]
    assert [(one["session_id"], one["status"]) for one in listed] == [(first, "exited"), (second, "running")]


async def test_with_nothing_started_the_list_is_empty(call: Call) -> None:
    assert await call("process", action="list") == {"processes": []}


async def test_an_unknown_session_id_is_refused_with_the_known_ones(call: Call) -> None:
    session_id = await started(call, "sleep 60")
    answer = await call("process", action="poll", session_id="proc_nope")
    assert answer["error"] == f"no background process has session_id 'proc_nope'; running ones: {session_id}"


async def test_a_background_command_runs_in_its_workdir(call: Call) -> None:
    await call("terminal", command="mkdir a")
    session_id = await started(call, "basename $PWD", workdir="~/a")
    assert (await call("process", action="wait", session_id=session_id))["output"] == "a\n"


async def test_a_background_command_leaves_no_files_of_ours_in_the_workspace(call: Call) -> None:
    await call("process", action="wait", session_id=await started(call, "echo 'it'\"'\"'s \"quoted\"'"))
    assert (await call("terminal", command="ls -A"))["output"] == ""
