"""One subprocess, run to its end: bounded output, a deadline, and nothing of our own environment.

Always true: when `run` returns or is cancelled, the process is gone; on a timeout or a cancellation `kill` was
called for its tree. A child left in the background neither delays the return nor dies for lack of a reader.
"""

import asyncio
import contextlib
import os
import posixpath
import re
import shlex
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from hermes_rl.sandbox.child import Child
from hermes_rl.sandbox.process_tree import MARKER
from hermes_rl.sandbox.protocol import DEFAULT_MAX_OUTPUT, TIMEOUT_EXIT_CODE, Command, ExecResult

CANNOT_RUN_EXIT_CODE = 126
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_EOF_GRACE = 0.1
_KILL_GRACE = 2.0
_SLICE = 1024 * 1024
# Linux refuses a single argument of 128 KiB; a longer command travels in front of its stdin.
_LONGEST_ARGUMENT = 100_000
# Reading and dropping an endless output would eat a core of our own: `yes` gets one buffer per pause.
_DROP_PAUSE = 0.001
_BACKGROUND_DROP_PAUSE = 0.05
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

T = TypeVar("T")
Kill = Callable[[int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Script:
    """What bash is given: its text, its environment, its input."""

    text: str
    env: dict[str, str]
    stdin: bytes | None


@dataclass(slots=True)
class Leftovers:
    """Output pipes that background processes still hold. They are read and dropped until `close`."""

    transports: set[asyncio.ReadTransport] = field(default_factory=set)

    def close(self) -> None:
        for transport in tuple(self.transports):
            transport.close()
        self.transports.clear()


def base_environment(home: str) -> dict[str, str]:
    """All that a command sees unless it is given more. An allow-list: nothing is taken from our own environment."""
    return {"PATH": PATH, "HOME": home, "USER": "agent", "LANG": "C.UTF-8", "TERM": "dumb"}


async def run_in_shell(
    shell: Sequence[str],
    command: Command,
    *,
    home: str,
    marker: str,
    kill: Kill,
    leftovers: Leftovers,
    running: set[int],
    gate: asyncio.Lock,
    owner: int | None = None,
) -> ExecResult:
    """Run a command by `shell -c`, in its directory under `home`, with the allow-listed environment and the marker."""
    script = _script(command, home, marker)
    if isinstance(script, ExecResult):
        return script
    return await run(
        [*shell, "-c", script.text],
        env=script.env,
        kill=kill,
        timeout=command.timeout,
        stdin=script.stdin,
        merge_stderr=command.merge_stderr,
        max_output=command.max_output,
        leftovers=leftovers,
        running=running,
        owner=owner,
        gate=gate,
    )


def _script(command: Command, home: str, marker: str) -> Script | ExecResult:
    """The bash script that runs a command in its directory, or the result of a command no shell can be given."""
    if "\0" in command.text or (command.cwd and "\0" in command.cwd):
        return ExecResult(CANNOT_RUN_EXIT_CODE, b"", b"hermes-rl: a command cannot contain a NUL character\n")
    text = _encodable(command.text)
    directory = _encodable(posixpath.join(home, command.cwd or ""))
    environment = {**base_environment(home), MARKER: marker}
    # Given variables take their real names only inside the shell: the tools that enter the sandbox run with more
    # rights than the command and must not meet an LD_PRELOAD. Values stay out of the arguments, which `ps` shows.
    exports = ""
    for index, (name, value) in enumerate(command.env.items()):
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a name for an environment variable")
        environment[f"HERMES_RL_ENV_{index}"] = value
        exports += f'export {name}="$HERMES_RL_ENV_{index}"; unset HERMES_RL_ENV_{index}; '
    # On the command's own first line, so that the line numbers in bash's messages are the command's.
    opening = f"{exports}cd -- {shlex.quote(directory)} || exit {CANNOT_RUN_EXIT_CODE}; "
    encoded = text.encode("utf-8", "surrogateescape")
    if len(opening) + len(encoded) <= _LONGEST_ARGUMENT:
        return Script(opening + text, environment, command.stdin)
    # `read -N` on a file leaves the offset right behind the text, so the rest is the command's own stdin.
    length = f"LC_ALL=C IFS= read -r -N {len(encoded)} HERMES_RL_COMMAND"
    return Script(f'{length}; {opening}eval "$HERMES_RL_COMMAND"', environment, encoded + (command.stdin or b""))


async def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    kill: Kill,
    timeout: float,
    stdin: bytes | None = None,
    merge_stderr: bool = False,
    max_output: int = DEFAULT_MAX_OUTPUT,
    leftovers: Leftovers | None = None,
    running: set[int] | None = None,
    owner: int | None = None,
    gate: asyncio.Lock | None = None,
) -> ExecResult:
    """Run a process to its end. `kill(pid)` must end its tree; `owner` is the uid that may reopen /dev/stdout.

    While it runs its pid is in `running`; pipes that outlive it are in `leftovers`.
    """
    leftovers = leftovers if leftovers is not None else Leftovers()
    running = running if running is not None else set()
    streams: list[_Stream] = []
    given: list[int] = []
    try:
        given.append(os.open(os.devnull, os.O_RDONLY) if stdin is None else await _file_of(stdin))
        for _ in range(1 if merge_stderr else 2):
            stream, write_end = await _open_stream(max_output, owner, leftovers)
            streams.append(stream)
            given.append(write_end)
        exit_code, timed_out = await _run_child(
            argv, env, given, kill=kill, running=running, timeout=timeout, gate=gate
        )
        _close_all(given)
        await _await_end(streams)
    finally:
        _close_all(given)
        for stream in streams:
            stream.release()
    return ExecResult(
        exit_code=exit_code,
        stdout=bytes(streams[0].data),
        stderr=b"" if merge_stderr else bytes(streams[1].data),
        timed_out=timed_out,
        truncated=any(stream.truncated for stream in streams),
    )


async def _run_child(
    argv: Sequence[str],
    env: Mapping[str, str],
    fds: list[int],
    *,
    kill: Kill,
    running: set[int],
    timeout: float,
    gate: asyncio.Lock | None,
) -> tuple[int, bool]:
    """Start it and wait: its exit code, and whether it ran out of time. Cancelled, its tree is killed first."""
    # Never cancelled half way: a process that was started without our knowing its pid could not be killed.
    child = await _started(Child.start(argv, env, fds, gate), kill)
    running.add(child.pid)
    _close_all(fds)
    deadline = asyncio.timeout(timeout)
    try:
        async with deadline:
            await child.exited.wait()
    except TimeoutError:
        if not deadline.expired():
            raise
        await _end(child, kill)
        return TIMEOUT_EXIT_CODE, True
    except asyncio.CancelledError:
        await to_the_end(_end(child, kill))
        raise
    finally:
        running.discard(child.pid)
    return child.exit_code, False


async def _started(starting: Coroutine[Any, Any, Child], kill: Kill) -> Child:
    task = asyncio.ensure_future(starting)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if (child := await to_the_end(_unless_failed(task))) is not None:
            await to_the_end(_end(child, kill))
        raise


async def _unless_failed(task: asyncio.Task[Child]) -> Child | None:
    await asyncio.wait([task])
    return None if task.exception() else task.result()


async def _end(child: Child, kill: Kill) -> None:
    if not child.exited.is_set():
        await kill(child.pid)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILL_GRACE):
                await child.exited.wait()


class _Stream(asyncio.Protocol):
    """What comes out of one pipe, up to a limit."""

    def __init__(self, limit: int, leftovers: Leftovers) -> None:
        self.data = bytearray()
        self.truncated = False
        self.ended = asyncio.Event()
        self._limit = limit
        self._leftovers = leftovers
        self._released = False
        self._transport: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's classes.
        self._transport = cast("asyncio.ReadTransport", transport)
        self._leftovers.transports.add(self._transport)

    def data_received(self, data: bytes) -> None:
        room = 0 if self._released else self._limit - len(self.data)
        if len(data) <= room:
            self.data += data
            return
        if not self._released:
            self.data += data[:room]
            self.truncated = True
        if self._transport is not None:
            self._transport.pause_reading()
            pause = _BACKGROUND_DROP_PAUSE if self._released else _DROP_PAUSE
            asyncio.get_running_loop().call_later(pause, self._resume)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._leftovers.transports.discard(self._transport)
        self.ended.set()

    def release(self) -> None:
        """From here on whatever arrives is dropped."""
        self._released = True

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()


async def _open_stream(limit: int, owner: int | None, leftovers: Leftovers) -> tuple[_Stream, int]:
    stream = _Stream(limit, leftovers)
    return stream, await open_pipe(stream, owner)


async def open_pipe(reader: asyncio.Protocol, owner: int | None) -> int:
    """The write end of a new pipe whose other end `reader` reads."""
    # Pipes of our own, since asyncio and uvloop may hand a child sockets, on which `echo > /dev/stderr` fails; and
    # they belong to the sandbox's user, or that user could not reopen them.
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        if owner is not None:
            os.fchown(write_end, owner, -1)
        file = os.fdopen(read_end, "rb", buffering=0)
        # Cancelled half way, uvloop 0.23 would close the descriptor twice, the second time perhaps another's.
        await to_the_end(asyncio.get_running_loop().connect_read_pipe(lambda: reader, file))
    except BaseException:
        os.close(write_end)
        raise
    return write_end


async def _await_end(streams: Sequence[_Stream]) -> None:
    try:
        async with asyncio.timeout(_EOF_GRACE):
            for stream in streams:
                await stream.ended.wait()
    except TimeoutError:
        # One more pass of the loop: it may have been too busy to read what the process left in the pipe.
        await asyncio.sleep(0.001)


async def _file_of(data: bytes) -> int:
    """The input as a memory file: no writer to wait for, and /dev/stdin can be opened again."""
    fd = os.memfd_create("stdin")
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view[:_SLICE]) :]
            if view:
                await asyncio.sleep(0)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Wait for work that a cancellation must not interrupt; the cancellation is passed on when it is done."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    result = task.result()
    if cancelled:
        raise asyncio.CancelledError
    return result


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


def _encodable(text: str) -> str:
    """A model can write half a surrogate pair; no argument can hold one."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text
