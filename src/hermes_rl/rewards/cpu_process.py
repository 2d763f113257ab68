"""`@cpu_reward`: rewards that block or compute for long (sympy, requests, subprocess) run in a process with a deadline.

    @cpu_reward(timeout=5)
    def same_formula(given: str, wanted: str) -> bool: …

    score = float(await same_formula(result.final_response, item["formula"]))

Always true: the event loop never waits for the function; at its deadline, or when its rollout is cancelled, it is
killed with all it started before anybody is told; and no process outlives the pool, the environment or its owner's
`kill -9`. It is no sandbox: the agent's own code belongs into `ctx.verify`.
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

from hermes_rl import errors
from hermes_rl.errors import ConfigError, SandboxError, VerifierError, WorldError
from hermes_rl.rewards import cpu_worker
from hermes_rl.rewards.cpu_worker import LENGTH
from hermes_rl.sandbox.child import Child, to_the_end
from hermes_rl.trajectory import Reward

P = ParamSpec("P")
T = TypeVar("T")

LARGEST_RESULT = 64 * 1024 * 1024
# Seconds for a new process to import the author's module; the function's own time begins after that.
START_TIMEOUT = 60.0
# What a program needs to run as its user does; no variable that may hold a key.
KEPT_VARIABLES = frozenset(
    "PATH HOME USER LOGNAME LANG LANGUAGE TZ TMPDIR HERMES_HOME VIRTUAL_ENV LD_LIBRARY_PATH PYTHONHOME PYTHONHASHSEED "
    "SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE XDG_CACHE_HOME OMP_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS"
    "".split()
)
_END_TIME = 5.0
_PROGRAM = str(Path(cpu_worker.__file__).resolve())

# A module that was not imported by its name has this: the function that loads its file again, as MODULE:NAME.
LOADED_BY = "__hermes_rl_loaded_by__"

_running_workers: ContextVar["CpuWorkers | None"] = ContextVar("running_cpu_workers", default=None)


def cpu_reward(*, timeout: float) -> Callable[[Callable[P, T]], "CpuReward[P, T]"]:
    """Run the function in a process of its own, for `timeout` seconds at most; `await` what it returns."""
    return functools.partial(CpuReward, timeout=timeout)


class CpuReward(Generic[P, T]):
    """A function that runs elsewhere. `function` is the plain one, to be called in the process that has it."""

    def __init__(self, function: Callable[P, T], *, timeout: float) -> None:
        name = getattr(function, "__qualname__", repr(function))
        if "<" in name:
            raise ConfigError(
                f"@cpu_reward: {name} is made inside a function, where no other process can find it; "
                "put it at the top of the module"
            )
        if inspect.iscoroutinefunction(function):
            raise ConfigError(f"@cpu_reward: {name} is async; make it a plain function, which runs in its own process")
        if next(iter(inspect.signature(function).parameters), None) == "self":
            raise ConfigError(
                f"@cpu_reward: {name} takes self, and an environment cannot travel to another process; make it a "
                "function of the module, or a static method, of just the values it needs"
            )
        if not timeout > 0:
            raise ConfigError(f"@cpu_reward: the timeout of {name} must be over 0 seconds, got {timeout!r}")
        functools.update_wrapper(self, function)
        self.function, self.timeout, self.name = function, timeout, name

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """What the function returns; VerifierError when it raises, crashes, or is not done in time."""
        try:
            request = pickle.dumps((args, kwargs))
        except Exception as error:
            raise VerifierError("arguments", f"the arguments of {self.name} cannot be sent: {error}") from error
        workers = _running_workers.get()
        if workers is not None:
            return cast("T", await workers.call(self._place(), request, self.timeout))
        # Outside an environment nobody would end a process that waits for the next call.
        async with CpuWorkers(limit=1) as workers:
            return cast("T", await workers.call(self._place(), request, self.timeout))

    def _place(self) -> "Place":
        if sys.argv[:1] == [_PROGRAM]:
            raise ConfigError(
                f"{self.name} was called in the process of a @cpu_reward. There call {self.name}.function; and let a "
                'file that is run as a script begin its work below `if __name__ == "__main__":`'
            )
        module = self.function.__module__
        loaded = sys.modules.get(module)
        file = getattr(loaded, "__file__", None)
        if file is None:
            raise ConfigError(f"@cpu_reward: {self.name} is in no file that another process could load ({module})")
        return Place(module, str(Path(file).resolve()), self.name, getattr(loaded, LOADED_BY, None))


@dataclass(frozen=True, slots=True)
class Place:
    """Where another process finds a function."""

    module: str
    file: str
    qualname: str
    loaded_by: str | None


class CpuWorkers:
    """A few processes that run functions, started when first needed and used again. Use as `async with`."""

    def __init__(self, limit: int | None = None) -> None:
        self._slots = asyncio.Semaphore(limit or os.cpu_count() or 1)
        self._free: list[_Worker] = []
        self._all: set[_Worker] = set()

    async def call(self, place: Place, pickled: bytes, timeout: float) -> Any:
        """Run the function at a place. `timeout` counts from when it starts; waiting for a free process does not."""
        async with self._slots:
            worker = await self._worker()
            try:
                if place.module not in worker.loaded:
                    load = ("load", place.module, place.file, place.loaded_by)
                    await worker.ask(load, START_TIMEOUT, f"loading {place.file}")
                    worker.loaded.add(place.module)
                request = ("call", place.module, place.qualname, pickled)
                return await worker.ask(request, timeout, place.qualname)
            finally:
                await self._give_back(worker)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within this block, and in tasks started in it, `@cpu_reward` functions use these processes."""
        token = _running_workers.set(self)
        try:
            yield
        finally:
            _running_workers.reset(token)

    async def close(self) -> None:
        """Kill every process, those in the middle of a call too."""
        workers, self._all, self._free = list(self._all), set(), []
        await asyncio.gather(*(worker.close() for worker in workers))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await to_the_end(self.close())

    async def _worker(self) -> "_Worker":
        while self._free:
            worker = self._free.pop()
            if worker.usable:
                return worker
            await self._give_back(worker)
        worker = _Worker()
        self._all.add(worker)
        try:
            await worker.start()
        except BaseException:
            await self._give_back(worker)
            raise
        return worker

    async def _give_back(self, worker: "_Worker") -> None:
        """Keep a process for the next call; end one that is dead, or still at work that nobody waits for."""
        if worker.usable and worker in self._all:
            self._free.append(worker)
            return
        self._all.discard(worker)
        await to_the_end(worker.close())


class _Worker:
    """One process and the socket to it. It serves one request at a time; an unanswered one makes it unusable."""

    def __init__(self) -> None:
        self.loaded: set[str] = set()
        self._answered = False
        self._child: Child | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def usable(self) -> bool:
        return self._answered and self._child is not None and not self._child.exited.is_set()

    async def start(self) -> None:
        await to_the_end(self._spawn())
        await self.ask(("begin", sys.path, str(Path.cwd())), START_TIMEOUT, "a process for @cpu_reward")

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        nothing = os.open(os.devnull, os.O_RDONLY)
        argv = [sys.executable, "-P", _PROGRAM, str(theirs.fileno()), str(os.getpid())]
        kept = {name: text for name, text in os.environ.items() if name in KEPT_VARIABLES or name.startswith("LC_")}
        try:
            # What the function prints goes where our errors go: our output may be somebody's data.
            self._child = await Child.start(argv, kept, [nothing, 2, 2], pass_fds=[theirs.fileno()])
            self._streams = await asyncio.open_connection(sock=ours)
        except SandboxError as error:
            ours.close()
            raise VerifierError("start", f"no process for @cpu_reward: {error}") from error
        finally:
            theirs.close()
            os.close(nothing)

    async def ask(self, request: tuple[Any, ...], timeout: float, what: str) -> Any:
        """The value that the process answers with; VerifierError for anything else."""
        self._answered = False
        try:
            async with asyncio.timeout(timeout):
                reply = await self._exchange(pickle.dumps(request), what)
        except TimeoutError:
            raise VerifierError(
                "timeout", f"{what} took over {timeout:g} s and was killed with all it started; raise its timeout"
            ) from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise VerifierError("crashed", f"{what} ended its process: {await self._ending()}") from None
        self._answered = True
        return _value(reply, what)

    async def _exchange(self, request: bytes, what: str) -> Any:
        if self._streams is None:
            raise ConnectionError
        reader, writer = self._streams
        writer.write(LENGTH.pack(len(request)) + request)
        await writer.drain()
        [size] = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        if size > LARGEST_RESULT:
            raise VerifierError("result", f"{what} returned {size} bytes; {LARGEST_RESULT} is the most")
        return _PlainReader(io.BytesIO(await reader.readexactly(size)), what).load()

    async def _ending(self) -> str:
        if self._child is None or not await self._ended():
            return "it closed its socket"
        code = self._child.exit_code
        try:
            return f"killed by {signal.Signals(code - 128).name}"
        except ValueError:
            return f"exit code {code}"

    async def close(self) -> None:
        """End the process and all below it: its guard sees our end close, and is killed when it is late."""
        self._answered = False
        if self._streams is not None:
            self._streams[1].transport.abort()
        if self._child is not None and not await self._ended():
            self._child.kill()
            await self._ended()

    async def _ended(self) -> bool:
        """Whether the process is gone, or goes within a few seconds."""
        if self._child is None:
            return True
        try:
            async with asyncio.timeout(_END_TIME):
                return await self._child.exited.wait()
        except TimeoutError:
            return False


class _PlainReader(pickle.Unpickler):
    """Reads plain data and a Reward, nothing else: a function that was talked into eval answers for itself only."""

    def __init__(self, file: io.BytesIO, what: str) -> None:
        super().__init__(file)
        self._what = what

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (Reward.__module__, Reward.__qualname__):
            return Reward
        raise VerifierError(
            "result", f"{self._what} returned a {module}.{name}; return numbers, text, lists, dicts or a Reward"
        )


def _value(reply: Any, what: str) -> Any:
    match reply:
        case ("value", value):
            return value
        case ("world", str(kind), str(cause), str(message)) if _is_world_error(kind):
            raise getattr(errors, kind)(cause, message)
        case ("raised", str(kind), str(message), str(trace)):
            error = VerifierError("raised", f"{what} raised {kind}: {message}")
            error.add_note(f"In its process:\n{trace}")
            raise error
        case ("unpicklable", str(message)):
            raise VerifierError("result", f"{what} returned what cannot be sent back, a {message}")
    raise VerifierError("result", f"{what} answered with something unreadable")


def _is_world_error(name: str) -> bool:
    kind = getattr(errors, name, None)
    return isinstance(kind, type) and issubclass(kind, WorldError)
