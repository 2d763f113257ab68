"""The program that runs @cpu_reward functions: `python -P cpu_worker.py SOCKET OWNER`, standard library only.

A guard process runs no author code; its child, the worker, does. When the owner's end of the socket closes, the owner
dies or the worker exits, the guard kills all of its descendants, daemons included.
"""

import contextlib
import importlib
import importlib.util
import numbers
import os
import pickle
import select
import signal
import socket
import struct
import sys
import time
import traceback
from pathlib import Path
from typing import Any

LENGTH = struct.Struct("!Q")
# From linux/prctl.h.
_PDEATHSIG, _CHILD_SUBREAPER = 1, 36
_OWNER_CHECK_MS = 1000
_KILL_PAUSE = 0.001


def main() -> None:
    fd, owner = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(fd, False)
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    # Orphans of the function, even in their own session, become children of the guard, which can then kill them.
    prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)
    guard_pid = os.getpid()
    worker = os.fork()
    if worker:
        os._exit(guard(fd, owner, worker))
    prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == guard_pid:
        serve(socket.socket(fileno=fd))
    os._exit(0)


def guard(fd: int, owner: int, worker: int) -> int:
    """Wait for the owner or the worker to end, kill what remains, and return the worker's exit code."""
    poller = select.poll()
    poller.register(fd, select.POLLRDHUP)
    poller.register(os.pidfd_open(worker), select.POLLIN)
    exit_codes: dict[int, int] = {}
    while worker not in exit_codes:
        # A child of the owner may hold its end of the socket open, so check the parent pid too.
        events = poller.poll(_OWNER_CHECK_MS)
        if any(number == fd for number, _ in events) or os.getppid() != owner:
            break
        exit_codes |= _reap()
    code = exit_codes.get(worker, -signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            # Children of killed processes become ours, so killing our children repeatedly reaches all descendants.
            for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(_KILL_PAUSE)
    return 128 - code if code < 0 else code


def _reap() -> dict[int, int]:
    """Exit codes of the children that have ended."""
    exit_codes: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (gone := os.waitpid(-1, os.WNOHANG))[0]:
            exit_codes[gone[0]] = os.waitstatus_to_exitcode(gone[1])
    return exit_codes


def serve(channel: socket.socket) -> None:
    """Answer requests until the socket closes."""
    with channel.makefile("rb") as requests:
        while len(head := requests.read(LENGTH.size)) == LENGTH.size:
            # The owner is trusted: it can run any code here anyway.
            request = pickle.loads(requests.read(*LENGTH.unpack(head)))  # noqa: S301
            reply = handle_request(*request)
            try:
                payload = pickle.dumps(reply)
            except Exception as error:  # noqa: BLE001 (an author's object may raise anything)
                payload = pickle.dumps(("unpicklable", f"{type(reply[1]).__qualname__}: {error}"))
            channel.sendall(LENGTH.pack(len(payload)) + payload)


def handle_request(verb: str, *arguments: Any) -> tuple[Any, ...]:
    """The reply: ("value", it), ("infrastructure", class, cause, message) or ("raised", class, message, trace)."""
    try:
        if verb == "begin":
            sys.path[:], folder = arguments
            os.chdir(folder)
            return "value", None
        if verb == "load":
            load(*arguments)
            return "value", None
        module, qualname, pickled = arguments
        target: Any = sys.modules[module]
        for name in qualname.split("."):
            target = getattr(target, name)
        args, kwargs = pickle.loads(pickled)  # noqa: S301 - see above
        return "value", _plain_number(target.function(*args, **kwargs))
    except BaseException as error:  # noqa: BLE001 (SystemExit is reported too)
        if type(error).__module__ == "hermes_rl.core.errors" and hasattr(error, "cause"):
            return "infrastructure", type(error).__name__, error.cause, str(error)
        return "raised", type(error).__qualname__, str(error), traceback.format_exc()


def load(name: str, file: str, loaded_by: str | None) -> None:
    """Import the author's module as the owner did: by name, or from its file."""
    if name == "__main__":
        # Under another name, as in multiprocessing, so that `if __name__ == "__main__"` blocks do not run.
        sys.modules["__main__"] = _load_file("__mp_main__", file)
    elif loaded_by is not None:
        module, _, function = loaded_by.partition(":")
        getattr(importlib.import_module(module), function)(Path(file))
    else:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            _load_file(name, file)


def _load_file(name: str, file: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be loaded as a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _plain_number(value: Any) -> Any:
    """Convert a numpy or sympy number to float."""
    return float(value) if isinstance(value, numbers.Real) and type(value) not in {bool, int, float} else value


if __name__ == "__main__":
    main()
