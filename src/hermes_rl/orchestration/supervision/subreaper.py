"""The subreaper: a fork of the shim that starts the component and ends all of its processes when the shim dies.

Always true: every process the component starts stays below the subreaper, in whatever session; when the shim or the
component is gone, the subreaper kills the rest and exits. When the subreaper is killed, the component dies with it and
the shim inherits and kills the rest.
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

from hermes_rl.orchestration.supervision.process_tags import child_pids

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
START_FAILED = 75
KILL_TIMEOUT = 5.0
POLL_INTERVAL = 5.0
IGNORED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

# Loaded before any fork: loading a library in a forked child is not safe.
LIBC = ctypes.CDLL(None, use_errno=True)


def run_subreaper(spec: dict[str, Any], output: int, shim: int, report: int) -> NoReturn:
    """`shim` becomes readable when the shim dies; the component's pid and exit code are written to `report`."""
    code = START_FAILED
    try:
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        set_child_subreaper(enabled=True)
        code = _run_component(spec, output, shim, report)
    finally:
        with suppress(OSError):
            _send_report(report, exit_code=code)
        os._exit(0)


def _run_component(spec: dict[str, Any], output: int, shim: int, report: int) -> int:
    wake_r, wake_w = os.pipe()
    for end in (wake_r, wake_w):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    try:
        component = _spawn(spec, output)
    except OSError as error:
        os.write(output, f"{spec['command'][0]} could not be started: {error}\n".encode())
        return START_FAILED
    finally:
        os.close(output)
    _send_report(report, pid=component.pid)
    while component.poll() is None:
        reap_orphans(component.pid)
        ready, _, _ = select.select([shim, wake_r], [], [], POLL_INTERVAL)
        if wake_r in ready:
            os.read(wake_r, 4096)
        if shim in ready:
            component.kill()
    kill_descendants(component.pid)
    return int(component.returncode)


def _spawn(spec: dict[str, Any], output: int) -> "subprocess.Popen[bytes]":
    me = os.getpid()

    def die_with_me() -> None:
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != me:
            os._exit(START_FAILED)

    return subprocess.Popen(
        spec["command"],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd=spec["cwd"],
        start_new_session=True,
        preexec_fn=die_with_me,  # noqa: PLW1509 (there is one thread)
    )


def kill_descendants(component: int | None) -> None:
    """Kill the component's process group and every orphan that we inherited."""
    deadline = time.monotonic() + KILL_TIMEOUT
    while time.monotonic() < deadline:
        if component is not None:
            kill_group(component)
        reap_orphans(None)
        remaining = child_pids(os.getpid())
        if not remaining:
            return
        for child in remaining:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.01)


def kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def reap_orphans(except_pid: int | None) -> None:
    """Reap ended children, except `except_pid`, which its owner waits for."""
    if sys.platform != "linux":
        return
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid == except_pid:
                return
            os.waitpid(ended.si_pid, 0)


def set_child_subreaper(*, enabled: bool) -> None:
    """Whether orphaned descendants become our children."""
    _prctl(PR_SET_CHILD_SUBREAPER, int(enabled))


def _send_report(report: int, **fields: int) -> None:
    os.write(report, json.dumps(fields).encode() + b"\n")


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        LIBC.prctl(option, value, 0, 0, 0)
