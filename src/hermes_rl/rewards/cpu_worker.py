"""The program that runs @cpu_reward functions: `python -P cpu_worker.py SOCKET OWNER`, with Python's own modules only.

Two processes: a guard that runs nothing of the author's, and below it the worker that does. Always true: when our end
of the socket closes, the owner dies or the worker ends, the guard kills all that descends from it, daemons included.
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
    # What a function leaves behind in a session of its own becomes the guard's child, and is found.
    prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)
    guarding = os.getpid()
    worker = os.fork()
    if worker:
        os._exit(guard(fd, owner, worker))
    prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == guarding:
        serve(socket.socket(fileno=fd))
    os._exit(0)


def guard(fd: int, owner: int, worker: int) -> int:
    """Wait for the end of the owner or the worker, kill all that is left, and give the worker's exit code."""
    watched = select.poll()
    watched.register(fd, select.POLLRDHUP)
    watched.register(os.pidfd_open(worker), select.POLLIN)
    ended: dict[int, int] = {}
    while worker not in ended:
        # A process that the owner forked may hold our end of the socket; the owner's number tells too.
        happened = watched.poll(_OWNER_CHECK_MS)
        if any(number == fd for number, _ in happened) or os.getppid() != owner:
            break
        ended |= _reaped()
    code = ended.get(worker, -signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            # Children of those that die become ours, so killing our own over and over reaches all.
            for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(_KILL_PAUSE)
    return 128 - code if code < 0 else code


def _reaped() -> dict[int, int]:
    """The children that have ended since, with their exit codes."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (gone := os.waitpid(-1, os.WNOHANG))[0]:
            ended[gone[0]] = os.waitstatus_to_exitcode(gone[1])
    return ended


def serve(channel: socket.socket) -> None:
    """Answer requests until our end is closed."""
    with channel.makefile("rb") as requests:
        while len(head := requests.read(LENGTH.size)) == LENGTH.size:
            # From our own process, which may run what it likes here anyway.
            request = pickle.loads(requests.read(*LENGTH.unpack(head)))  # noqa: S301
            reply = answer(*request)
            try:
                said = pickle.dumps(reply)
            except Exception as error:  # noqa: BLE001 (an author's object may do anything)
                said = pickle.dumps(("unpicklable", f"{type(reply[1]).__qualname__}: {error}"))
            channel.sendall(LENGTH.pack(len(said)) + said)


def answer(verb: str, *given: Any) -> tuple[Any, ...]:
    """The reply to a request: ("value", it), ("world", class, cause, message) or ("raised", class, message, trace)."""
    try:
        if verb == "begin":
            sys.path[:], folder = given
            os.chdir(folder)
            return "value", None
        if verb == "load":
            load(*given)
            return "value", None
        module, qualname, pickled = given
        target: Any = sys.modules[module]
        for name in qualname.split("."):
            target = getattr(target, name)
        args, kwargs = pickle.loads(pickled)  # noqa: S301 - see above
        return "value", _plain(target.function(*args, **kwargs))
    except BaseException as error:  # noqa: BLE001 (SystemExit too is an answer)
        if type(error).__module__ == "hermes_rl.errors" and hasattr(error, "cause"):
            return "world", type(error).__name__, error.cause, str(error)
        return "raised", type(error).__qualname__, str(error), traceback.format_exc()


def load(name: str, file: str, loaded_by: str | None) -> None:
    """Import the author's module as the owner has it: by its name, or from the file it was loaded from."""
    if name == "__main__":
        # Under another name, as multiprocessing does it, so that `if __name__ == "__main__"` stays quiet.
        sys.modules["__main__"] = _from_file("__mp_main__", file)
    elif loaded_by is not None:
        module, _, function = loaded_by.partition(":")
        getattr(importlib.import_module(module), function)(Path(file))
    else:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            _from_file(name, file)


def _from_file(name: str, file: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be loaded as a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _plain(value: Any) -> Any:
    """A number of numpy's or sympy's as Python's own."""
    return float(value) if isinstance(value, numbers.Real) and type(value) not in {bool, int, float} else value


if __name__ == "__main__":
    main()
