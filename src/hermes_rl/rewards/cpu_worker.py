"""The program that runs @cpu_reward functions: `python -P cpu_worker.py SOCKET OWNER GUARD`.

A guard process, from the file GUARD (core/process_guard.py), runs no author code; its child, the worker, does. When the
owner's end of the socket closes, the owner dies or the worker exits, the guard kills all of its descendants, daemons
included. Standard library only: the package may not be on its path.
"""

import importlib
import importlib.util
import numbers
import os
import pickle
import socket
import struct
import sys
import traceback
from pathlib import Path
from typing import Any

LENGTH = struct.Struct("!Q")


def main() -> None:
    fd, owner = int(sys.argv[1]), int(sys.argv[2])
    process_guard = _load_file("_process_guard", sys.argv[3])
    os.set_inheritable(fd, False)
    process_guard.set_child_subreaper(enabled=True)
    guard, worker = os.getpid(), os.fork()
    if worker:
        os._exit(process_guard.shell_code(process_guard.guard_child(worker, fd, owner=owner)))
    process_guard.die_with(guard)
    serve(socket.socket(fileno=fd))
    os._exit(0)


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
