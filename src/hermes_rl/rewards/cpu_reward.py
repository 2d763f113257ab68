"""`@cpu_reward` runs blocking or CPU-heavy rewards (sympy, requests, subprocess) in a process with a deadline.

    @cpu_reward(timeout=5)
    def same_formula(given: str, wanted: str) -> bool: …

    score = float(await same_formula(result.final_response, item["formula"]))

The function never blocks the event loop. At its deadline, or when its rollout is cancelled, it is killed with every
process it started before the call returns. No process outlives the pool, even if the owner is killed with `kill -9`.
This is not a sandbox: run the agent's code with `ctx.verify`.
"""

import asyncio
import functools
import inspect
import io
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast

from hermes_rl.core import errors, process_guard
from hermes_rl.core.author_code import printed_line
from hermes_rl.core.child_python import python_command
from hermes_rl.core.errors import ConfigError, InfrastructureError, SandboxError, VerifierError
from hermes_rl.core.trajectory import Reward
from hermes_rl.rewards import cpu_worker
from hermes_rl.rewards.cpu_worker import LENGTH
from hermes_rl.sandbox.subprocess_vfork import Child, shield_until_done

P = ParamSpec("P")
T = TypeVar("T")

MAX_RESULT_BYTES = 64 * 1024 * 1024
# Seconds for a new process to import the author's module; the function's timeout starts after that.
START_TIMEOUT = 60.0
# Variables a program needs; none that may hold a key.
PASSED_VARIABLES = frozenset(
    "PATH HOME USER LOGNAME LANG LANGUAGE TZ TMPDIR HERMES_HOME VIRTUAL_ENV LD_LIBRARY_PATH PYTHONHOME PYTHONHASHSEED "
    "SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE XDG_CACHE_HOME OMP_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS"
    "".split()
)
_EXIT_TIMEOUT = 5.0
_PROGRAM = str(Path(cpu_worker.__file__).resolve())

# Set in modules that were not imported by name: MODULE:NAME of the function that loads their file again.
LOADED_BY = "__hermes_rl_loaded_by__"

_running_workers: ContextVar["CpuWorkers | None"] = ContextVar("running_cpu_workers", default=None)


def cpu_reward(*, timeout: float) -> Callable[[Callable[P, T]], "CpuReward[P, T]"]:
    """Run the function in a separate process for at most `timeout` seconds; `await` the call."""
    return functools.partial(CpuReward, timeout=timeout)


class CpuReward(Generic[P, T]):
    """A function that runs in another process. `function` is the undecorated function."""

    def __init__(self, function: Callable[P, T], *, timeout: float) -> None:
        name = getattr(function, "__qualname__", repr(function))
        if "<" in name:
            raise ConfigError(
                f"@cpu_reward: {name} is defined inside a function, where another process cannot find it; "
                "define it at module level"
            )
        if inspect.iscoroutinefunction(function):
            raise ConfigError(f"@cpu_reward: {name} is async; make it a plain function")
        if next(iter(inspect.signature(function).parameters), None) == "self":
            raise ConfigError(
                f"@cpu_reward: {name} takes self, but an environment cannot be sent to another process; make it a "
                "module-level function or a static method that takes only the values it needs"
            )
        if not timeout > 0:
            raise ConfigError(f"@cpu_reward: the timeout of {name} must be greater than 0 seconds, got {timeout!r}")
        functools.update_wrapper(self, function)
        self.function, self.timeout, self.name = function, timeout, name

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's return value; VerifierError when it raises, crashes or times out."""
        try:
            request = pickle.dumps((args, kwargs))
        except Exception as error:
            raise VerifierError("arguments", f"the arguments of {self.name} cannot be sent: {error}") from error
        workers = _running_workers.get()
        if workers is not None:
            return cast("T", await workers.call(self._location(), request, self.timeout))
        # Outside an environment nothing would stop an idle process.
        async with CpuWorkers(limit=1) as workers:
            return cast("T", await workers.call(self._location(), request, self.timeout))

    def _location(self) -> "FunctionLocation":
        if sys.argv[:1] == [_PROGRAM]:
            raise ConfigError(
                f"{self.name} was called inside a @cpu_reward process. Call {self.name}.function there, and put "
                'the main code of a script below `if __name__ == "__main__":`'
            )
        module = self.function.__module__
        loaded = sys.modules.get(module)
        file = getattr(loaded, "__file__", None)
        if file is None:
            raise ConfigError(f"@cpu_reward: {self.name} is not in a file that another process can load ({module})")
        return FunctionLocation(module, str(Path(file).resolve()), self.name, getattr(loaded, LOADED_BY, None))


@dataclass(frozen=True, slots=True)
class FunctionLocation:
    """Where another process can import a function from."""

    module: str
    file: str
    qualname: str
    loaded_by: str | None


class CpuWorkers:
    """A pool of processes, started on demand and reused. Use as `async with`."""

    def __init__(self, limit: int | None = None) -> None:
        self._slots = asyncio.Semaphore(limit or os.cpu_count() or 1)
        self._free: list[_RewardWorker] = []
        self._all: set[_RewardWorker] = set()

    async def call(self, location: FunctionLocation, pickled: bytes, timeout: float) -> Any:
        """Run a function. `timeout` does not include waiting for a free process."""
        async with self._slots:
            worker = await self._worker()
            try:
                if location.module not in worker.loaded:
                    load = ("load", location.module, location.file, location.loaded_by)
                    await worker.send(load, START_TIMEOUT, f"loading {location.file}")
                    worker.loaded.add(location.module)
                request = ("call", location.module, location.qualname, pickled)
                return await worker.send(request, timeout, location.qualname)
            finally:
                await self._return_worker(worker)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside this block and its tasks, `@cpu_reward` functions use these processes."""
        token = _running_workers.set(self)
        try:
            yield
        finally:
            _running_workers.reset(token)

    async def close(self) -> None:
        """Kill every process, including busy ones."""
        workers, self._all, self._free = list(self._all), set(), []
        await asyncio.gather(*(worker.close() for worker in workers))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await shield_until_done(self.close())

    async def _worker(self) -> "_RewardWorker":
        while self._free:
            worker = self._free.pop()
            if worker.usable:
                return worker
            await self._return_worker(worker)
        worker = _RewardWorker()
        self._all.add(worker)
        try:
            await worker.start()
        except BaseException:
            await self._return_worker(worker)
            raise
        return worker

    async def _return_worker(self, worker: "_RewardWorker") -> None:
        """Return a process to the pool; close one that is dead or still busy with an abandoned call."""
        if worker.usable and worker in self._all:
            self._free.append(worker)
            return
        self._all.discard(worker)
        await shield_until_done(worker.close())


class _RewardWorker:
    """One process and its socket. It handles one request at a time; an unanswered one makes it unusable."""

    def __init__(self) -> None:
        self.loaded: set[str] = set()
        self._answered = False
        self._child: Child | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def usable(self) -> bool:
        return self._answered and self._child is not None and not self._child.exited.is_set()

    async def start(self) -> None:
        await shield_until_done(self._spawn())
        await self.send(("begin", sys.path, str(Path.cwd())), START_TIMEOUT, "a process for @cpu_reward")

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        devnull = os.open(os.devnull, os.O_RDONLY)
        argv = python_command(_PROGRAM, str(theirs.fileno()), str(os.getpid()), process_guard.__file__)
        environment = {
            name: text for name, text in os.environ.items() if name in PASSED_VARIABLES or name.startswith("LC_")
        }
        try:
            # The function's output goes to standard error: our standard output may be data.
            self._child = await Child.start(argv, environment, [devnull, 2, 2], pass_fds=[theirs.fileno()])
            self._streams = await asyncio.open_connection(sock=ours)
        except SandboxError as error:
            ours.close()
            raise VerifierError("start", f"no process for @cpu_reward: {error}") from error
        finally:
            theirs.close()
            os.close(devnull)

    async def send(self, request: tuple[Any, ...], timeout: float, what: str) -> Any:
        """Send a request and return its value; VerifierError on any failure."""
        self._answered = False
        try:
            async with asyncio.timeout(timeout):
                reply = await self._exchange(pickle.dumps(request), what)
        except TimeoutError:
            raise VerifierError(
                "timeout", f"{what} took over {timeout:g} s and was killed with its child processes; raise its timeout"
            ) from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise VerifierError("crashed", f"{what} ended its process: {await self._describe_exit()}") from None
        self._answered = True
        return _unwrap(reply, what)

    async def _exchange(self, request: bytes, what: str) -> Any:
        if self._streams is None:
            raise ConnectionError
        reader, writer = self._streams
        writer.write(LENGTH.pack(len(request)) + request)
        await writer.drain()
        [size] = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        if size > MAX_RESULT_BYTES:
            raise VerifierError("result", f"{what} returned {size} bytes; the maximum is {MAX_RESULT_BYTES}")
        return _PlainUnpickler(io.BytesIO(await reader.readexactly(size)), what).load()

    async def _describe_exit(self) -> str:
        if self._child is None or not await self._wait_exited():
            return "it closed its socket"
        code = self._child.exit_code
        try:
            return f"killed by {signal.Signals(code - 128).name}"
        except ValueError:
            return f"exit code {code}"

    async def close(self) -> None:
        """End the process and its children: the guard sees the socket close, and is killed if it takes too long."""
        self._answered = False
        if self._streams is not None:
            self._streams[1].transport.abort()
        if self._child is not None and not await self._wait_exited():
            self._child.kill()
            await self._wait_exited()

    async def _wait_exited(self) -> bool:
        """Wait a few seconds for the process to exit; whether it did."""
        if self._child is None:
            return True
        try:
            async with asyncio.timeout(_EXIT_TIMEOUT):
                return await self._child.exited.wait()
        except TimeoutError:
            return False


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles only plain data and Reward, so a compromised function cannot run code in this process."""

    def __init__(self, file: io.BytesIO, what: str) -> None:
        super().__init__(file)
        self._what = what

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (Reward.__module__, Reward.__qualname__):
            return Reward
        raise VerifierError(
            "result", f"{self._what} returned a {module}.{name}; return numbers, text, lists, dicts or a Reward"
        )


def _unwrap(reply: Any, what: str) -> Any:
    match reply:
        case ("value", value):
            return value
        case ("infrastructure", str(kind), str(cause), str(message)) if _is_infrastructure_error(kind):
            raise getattr(errors, kind)(cause, message)
        case ("raised", str(kind), str(message), str(trace)):
            error = VerifierError("raised", f"{what} raised {kind}{printed_line(trace)}: {message}")
            error.add_note(f"In its process:\n{trace}")
            raise error
        case ("unpicklable", str(message)):
            raise VerifierError("result", f"{what} returned a value that cannot be pickled: {message}")
    raise VerifierError("result", f"{what} sent an invalid reply")


def _is_infrastructure_error(name: str) -> bool:
    kind = getattr(errors, name, None)
    return isinstance(kind, type) and issubclass(kind, InfrastructureError)
