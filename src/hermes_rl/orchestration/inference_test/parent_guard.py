"""Run a command that ends with its parent: `python parent_guard.py COMMAND …`, with stdin held open by the parent.

Always true: when stdin closes, or the parent dies, the command's process group is gone within GRACE seconds, then this
process. A killed guard kills the command too. Run as a file, so it imports nothing of the package.
"""

import ctypes
import os
import select
import signal
import sys
import time
from contextlib import suppress

# For the command to close its sandboxes.
GRACE = 10.0
POLL_MS = 100
# From linux/prctl.h.
PDEATHSIG = 1


def main() -> int:
    parent, guard = os.getppid(), os.getpid()
    command = os.fork()
    if not command:
        _exec_command(sys.argv[1:], guard)
    stdin = select.poll()
    stdin.register(0, select.POLLIN)
    ended = _exit_code(command)
    while ended is None and not stdin.poll(POLL_MS) and os.getppid() == parent:
        ended = _exit_code(command)
    if ended is None:
        os.kill(command, signal.SIGINT)
        deadline = time.monotonic() + GRACE
        while (ended := _exit_code(command)) is None and time.monotonic() < deadline:
            time.sleep(POLL_MS / 1000)
    with suppress(ProcessLookupError):
        os.killpg(command, signal.SIGKILL)
    if ended is None:
        ended = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    return ended if ended >= 0 else 128 - ended


def _exec_command(command: list[str], guard: int) -> None:
    os.setsid()
    # Background jobs of a shell ignore SIGINT, and the command would inherit that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != guard:
        os._exit(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.execvp(command[0], command)  # noqa: S606 (no shell needed)


def _exit_code(command: int) -> int | None:
    """None while it runs; negative for a signal."""
    pid, status = os.waitpid(command, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if pid else None


if __name__ == "__main__":
    sys.exit(main())
