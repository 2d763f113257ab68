"""The `terminal` toolset: shell commands in the rollout's sandbox, in the foreground or background."""

import shlex
import uuid
from typing import Any, Literal

from hermes_rl.tools.files import sandbox_path
from hermes_rl.tools.session import BackgroundProcess, ToolSession
from hermes_rl.tools.tool import ToolUseError, tool
from hermes_rl.tools.toolset import Toolset
from hermes_rl.tools.truncate import truncate_middle

MAX_OUTPUT_CHARS = 50_000
MAX_LOG_BYTES = 20_000
HOUSEKEEPING_TIMEOUT = 30.0
KILL_GRACE = 5


@tool
async def terminal(
    session: ToolSession,
    command: str,
    background: bool = False,
    timeout: int | None = None,
    workdir: str | None = None,
) -> dict[str, Any]:
    """Run a shell command in the sandbox and return its output and exit code. Files stay between calls.

    Args:
        command: The bash command to run.
        background: Leave it running and return at once; follow it with the process tool.
        timeout: Seconds to allow; the command is killed after that.
        workdir: Directory to run it in; the workspace when left out.
    """
    if background:
        return await _start_in_background(session, command, workdir)
    seconds = session.command_timeout(timeout)
    sandbox = await session.sandbox()
    where = None if workdir is None else sandbox_path(sandbox, workdir)
    result = await sandbox.exec(command, cwd=where, timeout=seconds, merge_stderr=True)
    error = f"timed out after {seconds:g} s and was killed" if result.timed_out else None
    output = truncate_middle(result.stdout.decode(errors="replace"), MAX_OUTPUT_CHARS)
    return {"output": output, "exit_code": result.exit_code, "error": error}


@tool
async def process(
    session: ToolSession,
    action: Literal["list", "poll", "log", "wait", "kill"],
    session_id: str | None = None,
    timeout: int = 30,
) -> dict[str, Any]:
    """Follow the commands that terminal left running in the background.

    Args:
        action: list them all, or for one: poll its state, read its log, wait for its end, kill it.
        session_id: The id that terminal returned; needed for all but list.
        timeout: Seconds to wait, for wait.
    """
    if action == "list":
        return {"processes": [await _state(session, entry) for entry in session.processes.values()]}
    entry = session.processes.get(session_id or "")
    if entry is None:
        known = ", ".join(session.processes) or "none"
        raise ToolUseError(f"no background process has session_id {session_id!r}; running ones: {known}")
    sandbox = await session.sandbox()
    if action == "kill":
        # Not after it has ended: its pid may have been reused. Repeatedly, because a process that was just started may
        # not have its own session yet.
        kill = f"kill -KILL -- -{entry.pid} 2>/dev/null;"
        await sandbox.exec(_wait_for_end(entry, KILL_GRACE, meanwhile=kill), timeout=HOUSEKEEPING_TIMEOUT)
    elif action == "wait":
        seconds = max(1, int(min(timeout, session.terminal_timeout, session.command_timeout(timeout))))
        await sandbox.exec(_wait_for_end(entry, seconds), timeout=seconds + HOUSEKEEPING_TIMEOUT)
    state = await _state(session, entry)
    if action in ("log", "wait"):
        tail = await sandbox.exec(f"tail -c {MAX_LOG_BYTES} -- {shlex.quote(entry.log)}", timeout=HOUSEKEEPING_TIMEOUT)
        state["output"] = tail.stdout.decode(errors="replace")
    return state


TERMINAL = Toolset("terminal", (terminal, process))


async def _start_in_background(session: ToolSession, command: str, workdir: str | None) -> dict[str, Any]:
    sandbox = await session.sandbox()
    process_id = f"proc_{uuid.uuid4().hex[:12]}"
    path_prefix = f"{sandbox.scratch}/{process_id}"
    # In its own session, so that the whole process group can be killed.
    runner = 'bash -c "$1" > "$2.log" 2>&1 < /dev/null; echo $? > "$2.exit"'
    started = await sandbox.exec(
        f"setsid bash -c {shlex.quote(runner)} _ {shlex.quote(command)} {shlex.quote(path_prefix)} "
        "> /dev/null 2>&1 < /dev/null & echo $!",
        cwd=None if workdir is None else sandbox_path(sandbox, workdir),
        timeout=HOUSEKEEPING_TIMEOUT,
    )
    pid = started.stdout.strip()
    if started.exit_code != 0 or not pid.isdigit():
        raise ToolUseError(f"could not start the command: {started.stderr.decode(errors='replace').strip()}")
    session.processes[process_id] = BackgroundProcess(
        process_id, command, int(pid), log=f"{path_prefix}.log", exit_file=f"{path_prefix}.exit"
    )
    return {"output": "started in the background", "session_id": process_id, "pid": int(pid), "exit_code": 0}


def _ended(entry: BackgroundProcess) -> str:
    """A shell test: the exit code was written, or the process is gone. A zombie counts as ended."""
    left_code = f"[ -s {shlex.quote(entry.exit_file)} ]"
    runs = f"grep -qs '^State:[[:space:]]*[^ZX[:space:]]' /proc/{entry.pid}/status"
    return f"{{ {left_code} || ! {runs}; }}"


def _wait_for_end(entry: BackgroundProcess, seconds: int, meanwhile: str = "") -> str:
    return f"for i in $(seq {seconds * 10}); do {_ended(entry)} && break; {meanwhile} sleep 0.1; done"


async def _state(session: ToolSession, entry: BackgroundProcess) -> dict[str, Any]:
    sandbox = await session.sandbox()
    code = f"cat {shlex.quote(entry.exit_file)} 2>/dev/null || echo killed"
    result = await sandbox.exec(f"if {_ended(entry)}; then {code}; else echo running; fi", timeout=HOUSEKEEPING_TIMEOUT)
    status = result.stdout.decode(errors="replace").strip()
    exited = status.isdigit()
    return {
        "session_id": entry.id,
        "command": entry.command,
        "status": "exited" if exited else status,
        "exit_code": int(status) if exited else None,
    }
