import asyncio
from typing import Any

import pytest

from hermes_rl.core import fast_json
from hermes_rl.core.errors import SandboxError, ToolHostError
from hermes_rl.core.trajectory import Span
from hermes_rl.sandbox.backends.local import LocalBackend
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.protocol import Backend
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.registry import all_tools
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import Tool, ToolUseError, tool
from tests.tools.conftest import Call


@tool
async def breaks(session: ToolSession, how: str) -> str:
    """Raise as told."""
    match how:
        case "unexpectedly":
            raise ZeroDivisionError("by zero")
        case "the world":
            raise ToolHostError("down", "the search provider is down")
        case "misuse":
            raise ToolUseError("look elsewhere")
    return "plain text"


def host_of(backend: Backend, *tools: Tool, **bounds: int) -> ToolHost:
    pool = SandboxPool(backend, max_live=bounds.get("max_live", 8))
    named = {one.name: one for one in tools}
    return ToolHost(all_tools() | named, pool, calls_in_flight=bounds.get("calls_in_flight", 4), terminal_timeout=60)


async def outcome_of(backend: Backend, how: str) -> tuple[str, str | None]:
    host = host_of(backend, breaks)
    try:
        outcome = await host.session("rollout").call("breaks", {"how": how})
    finally:
        await host.close()
    return outcome.text, outcome.error


async def test_text_that_a_tool_returns_is_told_as_it_is(backend: Backend) -> None:
    assert await outcome_of(backend, "well") == ("plain text", None)


async def test_an_unexpected_exception_is_told_to_the_model(backend: Backend) -> None:
    text, error = await outcome_of(backend, "unexpectedly")
    assert error == "breaks failed: ZeroDivisionError: by zero"
    assert fast_json.loads(text) == {"error": error}


@tool
async def sleeps(session: ToolSession) -> str:
    """Forget the time."""
    await asyncio.sleep(60)
    return "awake"


async def test_a_tool_that_forgets_the_policys_deadline_is_stopped(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_rl.tools.session.CALL_GRACE", 0.2)
    host = host_of(backend, sleeps)
    session = host.session("rollout")
    session.time_left = -1.0
    outcome = await session.call("sleeps", {})
    await host.close()
    assert outcome.error == "sleeps was stopped: the time for this task is over"


async def test_a_misuse_is_told_in_its_own_words(backend: Backend) -> None:
    assert await outcome_of(backend, "misuse") == ('{"error":"look elsewhere"}', "look elsewhere")


async def test_a_fault_of_the_world_passes_through(backend: Backend) -> None:
    with pytest.raises(ToolHostError, match="provider is down"):
        await outcome_of(backend, "the world")


async def test_a_call_gives_its_place_back_however_it_ends(backend: Backend) -> None:
    host = host_of(backend, breaks, calls_in_flight=1)
    session = host.session("rollout")
    async with asyncio.timeout(60):
        for how in ("unexpectedly", "misuse", "well"):
            await session.call("breaks", {"how": how})
        with pytest.raises(ToolHostError):
            await session.call("breaks", {"how": "the world"})
        assert (await session.call("breaks", {"how": "well"})).text == "plain text"
    await host.close()


async def test_an_unknown_tool_is_refused_with_the_known_ones(session: ToolSession) -> None:
    outcome = await session.call("terminl", {})
    assert outcome.error == (
        "unknown tool 'terminl'; available: "
        "execute_code, patch, process, read_file, search_files, terminal, todo, write_file"
    )


async def test_wrong_arguments_are_told_to_the_model(session: ToolSession) -> None:
    assert "command: Field required" in ((await session.call("terminal", {"cmd": "ls"})).error or "")


async def test_a_call_that_was_not_carried_out_starts_no_sandbox(host: ToolHost, session: ToolSession) -> None:
    await session.call("terminl", {})
    await session.call("terminal", {})
    assert host.pool.live == 0


async def test_sessions_do_not_see_each_others_files(host: ToolHost) -> None:
    one, other = host.session("one"), host.session("other")
    await one.call("write_file", {"path": "secret.txt", "content": "x"})
    assert (await other.call("read_file", {"path": "secret.txt"})).error == "there is no file secret.txt"


async def test_sessions_do_not_see_each_others_background_processes(host: ToolHost, call: Call) -> None:
    started = await call("terminal", command="sleep 60", background=True)
    other = host.session("other")
    assert "no background process" in (
        (await other.call("process", {"action": "poll", "session_id": started["session_id"]})).error or ""
    )


async def test_calls_of_one_session_share_one_sandbox_also_at_once(host: ToolHost, session: ToolSession) -> None:
    await asyncio.gather(*(session.call("terminal", {"command": "true"}) for _ in range(4)))
    assert host.pool.live == 1


async def test_one_task_id_is_one_session(host: ToolHost) -> None:
    assert host.session("one") is host.session("one")


async def test_a_closed_session_fails_every_call_as_a_sandbox_that_is_gone(host: ToolHost) -> None:
    session = host.session("one")
    await session.call("terminal", {"command": "true"})
    await host.close_session("one")
    with pytest.raises(SandboxError, match="already closed") as caught:
        await session.call("terminal", {"command": "true"})
    assert caught.value.cause == "closed"


async def test_closing_a_session_ends_its_sandbox_and_twice_is_harmless(host: ToolHost, session: ToolSession) -> None:
    await session.call("terminal", {"command": "true"})
    await session.close()
    await session.close()
    assert host.pool.live == 0


async def test_a_session_that_was_never_used_has_nothing_to_close(host: ToolHost, session: ToolSession) -> None:
    await host.close_session("rollout")
    assert host.pool.live == 0


async def test_a_session_closed_while_its_sandbox_starts_leaves_none(host: ToolHost, session: ToolSession) -> None:
    calling = asyncio.create_task(session.call("terminal", {"command": "true"}))
    await asyncio.sleep(0)
    await session.close()
    await asyncio.gather(calling, return_exceptions=True)
    assert host.pool.live == 0


async def test_a_close_that_was_cancelled_can_be_done_again(host: ToolHost, session: ToolSession) -> None:
    starting = asyncio.create_task(session.sandbox())
    await asyncio.sleep(0)
    closing = asyncio.create_task(session.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(starting, closing, return_exceptions=True)
    await session.close()
    assert host.pool.live == 0


async def test_closing_the_host_ends_every_sandbox(backend: Backend) -> None:
    host = host_of(backend)
    for task_id in "abc":
        await host.session(task_id).call("terminal", {"command": "true"})
    await host.close()
    assert host.pool.live == 0


async def test_rollouts_that_wait_for_a_sandbox_do_not_block_those_that_have_one(backend: Backend) -> None:
    host = host_of(backend, max_live=1, calls_in_flight=1)
    first = host.session("first")
    await first.call("terminal", {"command": "true"})
    waiting = asyncio.create_task(host.session("second").call("terminal", {"command": "echo second"}))
    await asyncio.sleep(0.05)
    async with asyncio.timeout(30):
        await first.call("terminal", {"command": "true"})
        await host.close_session("first")
        assert "second" in (await waiting).text
    await host.close()


async def test_calls_in_flight_are_bounded(backend: Backend) -> None:
    running, most = 0, 0

    @tool
    async def counted(session: ToolSession) -> str:
        """Count how many of these run at once."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return "done"

    host = host_of(backend, counted, calls_in_flight=2)
    await asyncio.gather(*(host.session(str(number % 2)).call("counted", {}) for number in range(8)))
    await host.close()
    assert most == 2


async def test_each_call_is_noted_with_its_time(session: ToolSession) -> None:
    await session.call("terminal", {"command": "sleep 0.2"})
    [start, used] = session.timings
    assert (start.span, start.name) == (Span.SANDBOX, "start")
    assert (used.span, used.name, used.seconds >= 0.2) == (Span.TOOL, "terminal", True)


async def test_a_cancelled_call_stays_cancelled(session: ToolSession) -> None:
    calling = asyncio.create_task(session.call("terminal", {"command": "sleep 60"}))
    await asyncio.sleep(0.3)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling


async def test_ending_the_policy_kills_what_it_left_and_keeps_its_files(session: ToolSession, call: Call) -> None:
    await call("terminal", command="echo kept > answer; (sleep 1; echo forged > answer) > /dev/null 2>&1 &")
    await session.end_policy()
    await asyncio.sleep(1.3)
    assert (await call("read_file", path="answer"))["content"] == "1|kept"


async def test_what_a_verifier_starts_is_not_ended_with_the_policy(session: ToolSession, call: Call) -> None:
    await session.end_policy()
    started: dict[str, Any] = await call("terminal", command="sleep 60", background=True)
    await session.end_policy()
    assert (await call("process", action="poll", session_id=started["session_id"]))["status"] == "running"


# A sandbox that is not used.


async def idle_host(backend: Backend, seconds: float) -> ToolHost:
    return ToolHost(all_tools(), SandboxPool(backend), calls_in_flight=4, terminal_timeout=60, sandbox_lifetime=seconds)


async def test_an_idle_sandbox_is_closed_and_its_next_use_is_a_failure_with_that_cause(backend: Backend) -> None:
    host = await idle_host(backend, 0.5)
    session = host.session("rollout")
    try:
        await session.call("terminal", {"command": "echo kept > file"})
        assert host.pool.live == 1
        async with asyncio.timeout(10):
            while host.pool.live:
                await asyncio.sleep(0.05)
        with pytest.raises(SandboxError, match=r"no command for 0.5 s.*--env.terminal_lifetime") as caught:
            await session.call("terminal", {"command": "cat file"})
        assert caught.value.cause == "idle"
        await session.end_policy()
    finally:
        await host.close()


async def test_a_sandbox_is_not_closed_while_a_command_runs_or_between_commands(backend: Backend) -> None:
    host = await idle_host(backend, 0.6)
    session = host.session("rollout")
    try:
        await session.call("terminal", {"command": "echo kept > file; sleep 2"})
        for _ in range(6):
            await asyncio.sleep(0.2)
            outcome = await session.call("terminal", {"command": "cat file"})
            assert fast_json.loads(outcome.text)["output"] == "kept\n"
        # As an external agent's program does: not through a tool.
        running = await (await session.sandbox()).exec("sleep 2; cat file", timeout=20)
        assert running.stdout == b"kept\n"
    finally:
        await host.close()


async def test_a_sandbox_is_not_closed_while_a_background_command_is_known(backend: Backend) -> None:
    host = await idle_host(backend, 0.4)
    session = host.session("rollout")
    try:
        await session.call("terminal", {"command": "sleep 1.5; echo done > file", "background": True})
        await asyncio.sleep(2)
        outcome = await session.call("terminal", {"command": "cat file"})
        assert fast_json.loads(outcome.text)["output"] == "done\n"
    finally:
        await host.close()


async def test_a_session_closes_while_its_idle_sandbox_does() -> None:
    host = await idle_host(LocalBackend(), 0.05)
    session = host.session("rollout")
    await session.sandbox()
    async with asyncio.timeout(10):
        while host.pool.live:
            await asyncio.sleep(0.001)
    await host.close()
    with pytest.raises(SandboxError, match="already closed"):
        await session.sandbox()
