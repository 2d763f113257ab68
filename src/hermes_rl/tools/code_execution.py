"""The `code_execution` toolset: Python in the rollout's sandbox.

Each call is a new process in the workspace; only files persist between calls.
"""

import shlex
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hermes_rl.core.errors import ToolHostError
from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import ToolUseError, tool
from hermes_rl.tools.toolset import Toolset
from hermes_rl.tools.truncate import truncate_middle

MAX_STREAM_CHARS = 50_000
# The rest of each stream is dropped.
MAX_STREAM_BYTES = 1024 * 1024
SEARCH_TIMEOUT = 30.0


@tool
async def execute_code(session: ToolSession, code: str, timeout: int | None = None) -> dict[str, Any]:
    """Run a Python program in the sandbox and return what it printed and its exit code.

    Variables do not last from one call to the next; files do. Modules in the workspace can be imported.

    Args:
        code: The program; print what you want to see.
        timeout: Seconds to allow; the program is killed after that.
    """
    sandbox = await session.sandbox()
    python = await session.resource("code_execution", lambda: _find_python(session, sandbox))
    seconds = session.command_timeout(timeout)
    result = await sandbox.exec(
        _command(python, f"{sandbox.scratch}/code_{uuid.uuid4().hex[:12]}"),
        cwd=sandbox.workspace,
        stdin=code.encode("utf-8", "replace"),
        timeout=seconds,
        max_output=MAX_STREAM_BYTES,
    )
    return {
        "stdout": truncate_middle(result.stdout.decode(errors="replace"), MAX_STREAM_CHARS),
        "stderr": truncate_middle(result.stderr.decode(errors="replace"), MAX_STREAM_CHARS),
        "exit_code": result.exit_code,
        "error": f"timed out after {seconds:g} s and was killed" if result.timed_out else None,
    }


CODE_EXECUTION = Toolset("code_execution", (execute_code,))


def _command(python: str, folder: str) -> str:
    """Save the program from standard input to a file and run it, so that tracebacks show its lines.

    The file is outside the workspace, which belongs to the policy, and is removed afterwards. Output is unbuffered, so
    that what was printed before a timeout is not lost.
    """
    quoted = shlex.quote(folder)
    return (
        f"mkdir -p -- {quoted} && cat > {quoted}/code.py || exit; "
        f'PYTHONPATH="$PWD${{PYTHONPATH:+:$PYTHONPATH}}" {shlex.quote(python)} -u {quoted}/code.py < /dev/null; '
        f"code=$?; rm -rf -- {quoted}; exit $code"
    )


@asynccontextmanager
async def _find_python(session: ToolSession, sandbox: Sandbox) -> AsyncIterator[str]:
    """Path of Python in the sandbox. Looked up first, because a program's exit code cannot tell that it is missing.

    The policy can remove it, or kill the search. Whether the image has Python is seen in a sandbox it never had.
    """
    python = await _search(sandbox)
    if python is None:
        async with session.untouched_sandbox(session.spec) as fresh:
            if await _search(fresh) is not None:
                raise ToolUseError("python3 does not start in this sandbox any more; undo what stops it")
        raise ToolHostError(
            "no_python", "code_execution: the sandbox has no python3; choose an image with Python, or another toolset"
        )
    yield python


async def _search(sandbox: Sandbox) -> str | None:
    found = await sandbox.exec("command -v python3 || command -v python", timeout=SEARCH_TIMEOUT)
    python = found.stdout.decode(errors="replace").strip()
    return python if found.exit_code == 0 and python else None
