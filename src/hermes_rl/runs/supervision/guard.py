"""Between a keeper and its part: a fork of the keeper that starts the part, and ends all of it when the keeper dies.

Always true: whatever the part starts stays below the guard, in whatever session; when the keeper or the part is gone,
the guard ends the rest and itself. When the guard is killed, the part dies with it, and the rest falls to the keeper.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, NoReturn

from hermes_rl.runs.supervision.marks import children_of

DIE_WITH_PARENT, ADOPT_ORPHANS = 1, 36
COULD_NOT_BEGIN = 75
LAST_DEEDS = 5.0
LOOK_EVERY = 5.0
OURS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

# Loaded before any fork: a child may not.
LIBC = ctypes.CDLL(None, use_errno=True)


def guard(order: dict[str, Any], output: int, keeper: int, report: int) -> NoReturn:
    """`keeper` can be read from once the keeper is dead; what the part's pid is and how it ended goes to `report`."""
    code = COULD_NOT_BEGIN
    try:
        for number in OURS:
            signal.signal(number, signal.SIG_IGN)
        adopt_orphans(yes=True)
        code = _guarded(order, output, keeper, report)
    finally:
        with suppress(OSError):
            _tell(report, exit_code=code)
        os._exit(0)


def _guarded(order: dict[str, Any], output: int, keeper: int, report: int) -> int:
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        part = _started(order, output)
    except OSError as error:
        os.write(output, f"{order['command'][0]} cannot be started: {error}\n".encode())
        return COULD_NOT_BEGIN
    finally:
        os.close(output)
    _tell(report, pid=part.pid)
    while part.poll() is None:
        reap_orphans(part.pid)
        ready, _, _ = select.select([keeper, woken], [], [], LOOK_EVERY)
        if woken in ready:
            os.read(woken, 4096)
        if keeper in ready:
            part.kill()
    leave_nothing(part.pid)
    return int(part.returncode)


def _started(order: dict[str, Any], output: int) -> "subprocess.Popen[bytes]":
    me = os.getpid()

    def die_with_me() -> None:
        for number in OURS:
            signal.signal(number, signal.SIG_DFL)
        _prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != me:
            os._exit(COULD_NOT_BEGIN)

    return subprocess.Popen(
        order["command"],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd=order["cwd"],
        start_new_session=True,
        preexec_fn=die_with_me,  # noqa: PLW1509 (there is one thread)
    )


def leave_nothing(part: int | None) -> None:
    """End the part's group, and every orphan that came to us."""
    deadline = time.monotonic() + LAST_DEEDS
    while time.monotonic() < deadline:
        if part is not None:
            kill_group(part)
        reap_orphans(None)
        left = children_of(os.getpid())
        if not left:
            return
        for child in left:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.01)


def kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def reap_orphans(but: int | None) -> None:
    """Those of the part's descendants that were left to us; the end of `but` is another's to see."""
    if sys.platform != "linux":
        return
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid == but:
                return
            os.waitpid(ended.si_pid, 0)


def adopt_orphans(*, yes: bool) -> None:
    """Whether those whose parent dies below us become our children."""
    _prctl(ADOPT_ORPHANS, int(yes))


def _tell(report: int, **news: int) -> None:
    os.write(report, json.dumps(news).encode() + b"\n")


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        LIBC.prctl(option, value, 0, 0, 0)
