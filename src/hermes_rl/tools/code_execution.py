"""The `code_execution` toolset: Python in the rollout's sandbox.

Each call is a process of its own, started in the workspace; only files last from one to the next.
"""

import shlex
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hermes_rl.errors import ToolHostError
from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.tools.excerpt import excerpt
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import tool
from hermes_rl.tools.toolset import Toolset

STREAM_SHOWN = 50_000
# What is read of each stream; the rest is dropped as it comes.
STREAM_READ = 1024 * 1024
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
    python = await session.resource("code_execution", lambda: _python_of(sandbox))
    allowed = session.time_for(timeout)
    result = await sandbox.exec(
        _command(python, f"{sandbox.scratch}/code_{uuid.uuid4().hex[:12]}"),
        cwd=sandbox.workspace,
        stdin=code.encode("utf-8", "replace"),
        timeout=allowed,
        max_output=STREAM_READ,
    )
    return {
        "stdout": excerpt(result.stdout.decode(errors="replace"), STREAM_SHOWN),
        "stderr": excerpt(result.stderr.decode(errors="replace"), STREAM_SHOWN),
        "exit_code": result.exit_code,
        "error": f"timed out after {allowed:g} s and was killed" if result.timed_out else None,
    }


CODE_EXECUTION = Toolset("code_execution", (execute_code,))


def _command(python: str, folder: str) -> str:
    """Run the program that comes by standard input, from a file, so that a traceback shows its lines.

    The file lies outside the workspace, which is the policy's work, and is removed when the program ends. Unbuffered,
    so that what was printed before a timeout is kept.
    """
    place = shlex.quote(folder)
    return (
        f"mkdir -p -- {place} && cat > {place}/code.py || exit; "
        f'PYTHONPATH="$PWD${{PYTHONPATH:+:$PYTHONPATH}}" {shlex.quote(python)} -u {place}/code.py < /dev/null; '
        f"code=$?; rm -rf -- {place}; exit $code"
    )


@asynccontextmanager
async def _python_of(sandbox: Sandbox) -> AsyncIterator[str]:
    """Where Python is in the sandbox. Looked up before the first program, whose own exit codes say nothing about it."""
    found = await sandbox.exec("command -v python3 || command -v python", timeout=SEARCH_TIMEOUT)
    python = found.stdout.decode(errors="replace").strip()
    if found.exit_code != 0 or not python:
        raise ToolHostError(
            "no_python", "code_execution: the sandbox has no python3; choose an image with Python, or another toolset"
        )
    yield python
