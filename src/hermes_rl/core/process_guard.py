"""Runs a command below a guard process, so that none of its processes outlives it, its owner or the guard.

Always true: everything the command starts, in whatever session, stays below the guard; when the command ends, the
lifeline closes or the owner dies, the guard kills the rest and exits. When the guard is killed, the command dies with
it. Outside Linux only the command's process group is killed.

Standard library only, and no import of the package: it is started as a file (`guard_argv`), loaded from its file by
rewards/cpu_worker.py, and imported by the shim, which forks it.
"""

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

# From linux/prctl.h.
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
START_FAILED = 75
KILL_TIMEOUT = 5.0
OWNER_CHECK_MS = 1000
POLL_MS = 100
IGNORED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# A pipe whose writer is gone reports HUP; a socket whose peer is gone, RDHUP. Data to read is neither.
CLOSED = select.POLLHUP | getattr(select, "POLLRDHUP", 0)

# Loaded before any fork: loading a library in a forked child is not safe.
LIBC = ctypes.CDLL(None, use_errno=True)


def guard_argv(command: Sequence[str], *, grace: float = 0.0, report: bool = False) -> list[str]:
    """The command line of a guard in a new process, whose standard input is the lifeline.

    The guard exits with the command's code. With `report`, its standard output gets the command's pid and exit code as
    JSON lines, and the command writes to standard error only.
    """
    return [sys.executable, "-I", __file__, str(grace), str(int(report)), *command]


def run_guarded(
    command: Sequence[str],
    lifeline: int,
    *,
    owner: int,
    report: int | None = None,
    output: int | None = None,
    cwd: str | None = None,
    grace: float = 0.0,
) -> int:
    """Run a command as `guard_child` does; its output goes to `output`, its pid and exit code to `report`."""
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    set_child_subreaper(enabled=True)
    child = _spawn(command, output, cwd)
    _send_report(report, "pid", child)
    if output is not None and output > 2:
        # Its reader waits until every process of the command has closed it.
        os.close(output)
    code = guard_child(child, lifeline, owner=owner, grace=grace)
    _send_report(report, "exit_code", code)
    return code


def guard_child(child: int, lifeline: int, *, owner: int, grace: float = 0.0) -> int:
    """Wait until the child or its owner ends, then kill every descendant. The child's code, negative for a signal.

    The owner is gone when `lifeline` closes, or when it is no longer our parent: another process may hold its end of
    the lifeline open. With `grace`, the child gets SIGINT and so many seconds before it is killed.
    """
    poller = select.poll()
    poller.register(lifeline, CLOSED)
    interval = POLL_MS
    with suppress(AttributeError, OSError):
        poller.register(os.pidfd_open(child), select.POLLIN)
        interval = OWNER_CHECK_MS
    codes: dict[int, int] = {}
    while reap_children(codes) and child not in codes and os.getppid() == owner:
        if any(number == lifeline for number, _ in poller.poll(interval)):
            break
    if child not in codes and grace:
        os.kill(child, signal.SIGINT)
        deadline = time.monotonic() + grace
        while reap_children(codes) and child not in codes and time.monotonic() < deadline:
            time.sleep(POLL_MS / 1000)
    return (codes | kill_descendants(child)).get(child, -signal.SIGKILL)


def kill_descendants(group: int | None) -> dict[int, int]:
    """Kill a process group and all of our children until none is left; their exit codes by pid.

    Linux gives us the orphans of those that we kill, if we are a subreaper, so this reaches all descendants.
    """
    codes: dict[int, int] = {}
    deadline = time.monotonic() + KILL_TIMEOUT
    while time.monotonic() < deadline:
        if group is not None:
            kill_group(group)
        for pid in _child_pids():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not reap_children(codes):
            break
        time.sleep(0.002)
    return codes


def kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def reap_children(codes: dict[int, int]) -> bool:
    """Add the exit codes of the children that have ended, by pid; whether any child is left."""
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    except ChildProcessError:
        return False
    return True


def set_child_subreaper(*, enabled: bool) -> None:
    """Whether orphaned descendants become our children."""
    _prctl(PR_SET_CHILD_SUBREAPER, int(enabled))


def die_with(parent: int) -> None:
    """Called in a forked child: the kernel kills it when its parent dies."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(START_FAILED)


def shell_code(code: int) -> int:
    """An exit code as a shell reports it: 128 and the number of a signal."""
    return 128 - code if code < 0 else code


def _spawn(command: Sequence[str], output: int | None, cwd: str | None) -> int:
    guard = os.getpid()
    if child := os.fork():
        return child
    try:
        os.setsid()
        # Python ignores SIGPIPE and SIGXFSZ, and a shell's background jobs SIGINT; a command would inherit that.
        for number in (*IGNORED_SIGNALS, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        die_with(guard)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if output is not None:
            os.dup2(output, 1)
            os.dup2(output, 2)
        if cwd is not None:
            os.chdir(cwd)
        os.execvp(command[0], list(command))  # noqa: S606 (no shell needed)
    except OSError as error:
        os.write(2, f"{command[0]} could not be started: {error}\n".encode())
    finally:
        os._exit(START_FAILED)


def _child_pids() -> list[int]:
    with suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    return []


def _send_report(report: int | None, name: str, value: int) -> None:
    if report is not None:
        # Its reader may be gone, which the lifeline tells.
        with suppress(OSError):
            os.write(report, f'{{"{name}": {value}}}\n'.encode())


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        LIBC.prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    seconds, reports, *argv = sys.argv[1:]
    report, output = (1, 2) if int(reports) else (None, None)
    code = run_guarded(argv, 0, owner=os.getppid(), report=report, output=output, grace=float(seconds))
    sys.exit(shell_code(code))
