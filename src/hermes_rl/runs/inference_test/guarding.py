"""A command that ends with its owner: `python guarding.py COMMAND …`, with a standard input that the owner holds open.

Always true: when that input ends, by the owner's wish or its death, the command's group is gone within GRACE seconds
and this process after it. A killed guard takes the command with it. Run as a file: it needs nothing of the package.
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
LOOK_EVERY_MS = 100
# From linux/prctl.h.
PDEATHSIG = 1


def main() -> int:
    owner, guard = os.getppid(), os.getpid()
    command = os.fork()
    if not command:
        _become(sys.argv[1:], guard)
    held = select.poll()
    held.register(0, select.POLLIN)
    ended = _end_of(command)
    while ended is None and not held.poll(LOOK_EVERY_MS) and os.getppid() == owner:
        ended = _end_of(command)
    if ended is None:
        os.kill(command, signal.SIGINT)
        deadline = time.monotonic() + GRACE
        while (ended := _end_of(command)) is None and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_MS / 1000)
    with suppress(ProcessLookupError):
        os.killpg(command, signal.SIGKILL)
    if ended is None:
        ended = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    return ended if ended >= 0 else 128 - ended


def _become(command: list[str], guard: int) -> None:
    os.setsid()
    # What a shell starts in the background ignores it, and so would the command that is to end by it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != guard:
        os._exit(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.execvp(command[0], command)  # noqa: S606 (no shell is wanted)


def _end_of(command: int) -> int | None:
    """Its exit code once it has ended; below zero for a signal."""
    number, status = os.waitpid(command, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if number else None


if __name__ == "__main__":
    sys.exit(main())
