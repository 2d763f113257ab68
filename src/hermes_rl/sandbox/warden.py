"""The host's end of a warden: commands go in as frames, and what they say comes back, on one stream of bytes.

Always true: one connection carries any number of commands at once; what the policy writes reaches us only inside the
frames that the warden makes of it. When the connection is lost, every command in flight ends as a SandboxError.
`warden.pl` is the other end and describes the frames.
"""

import asyncio
import itertools
import posixpath
import re
import shlex
import struct
from abc import abstractmethod
from collections.abc import AsyncIterable, Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Protocol

from hermes_rl.errors import SandboxError
from hermes_rl.sandbox import protocol
from hermes_rl.sandbox.child import to_the_end
from hermes_rl.sandbox.protocol import TIMEOUT_EXIT_CODE, Command, ExecResult, Sandbox
from hermes_rl.sandbox.spec import AGENT, ROOT

PROGRAM = resources.files("hermes_rl.sandbox").joinpath("warden.pl").read_text()
CANNOT_RUN_EXIT_CODE = 126
PATH = protocol.PATH
AGENT_ID = 1000

_HEADER = struct.Struct("!cII")
_TWO = struct.Struct("!II")
# Input on its way to a command that has not taken it: more would only fill the warden's memory.
_WINDOW = 1024 * 1024
_PIECE = 64 * 1024
# For the warden to kill a tree, or everything, on a machine that is busy.
_KILL_TIME = 20.0
# While a command runs: how often the warden is asked whether it still lives, and how long it may take to say so.
_WATCH_EVERY = 15.0
_WATCH_TIME = 30.0
# Linux refuses a single argument of 128 KiB; a longer command travels in front of its input.
_LONGEST_ARGUMENT = 100_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Transport(Protocol):
    """The bytes to a warden. What comes from it is given to `Warden.feed`, its end to `Warden.lost`."""

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None:
        """Wait while too much of what was written is still on its way."""
        ...


class Outgoing:
    """A Transport for streams whose writing must be awaited: what is written waits here for a task that sends it."""

    def __init__(self) -> None:
        self._outgoing = bytearray()
        self._waiting = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def write(self, data: bytes) -> None:
        self._outgoing += data
        self._waiting.set()
        if len(self._outgoing) > _WINDOW:
            self._room.clear()

    async def drain(self) -> None:
        await self._room.wait()

    def _take(self, most: int) -> bytes:
        """The next piece to send; whoever waits for room hears of it."""
        piece = bytes(self._outgoing[:most])
        del self._outgoing[:most]
        if not self._outgoing:
            self._waiting.clear()
        if len(self._outgoing) <= _WINDOW:
            self._room.set()
        return piece


@dataclass(slots=True)
class _Running:
    sink: Callable[[bytes], object]
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    ended: "asyncio.Future[tuple[int, bool]]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    killed: asyncio.Event = field(default_factory=asyncio.Event)
    on_its_way: int = 0
    room: asyncio.Event = field(default_factory=asyncio.Event)


class Warden:
    """One connection to the warden of one sandbox."""

    def __init__(self) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: Transport | None = None
        self._numbers = itertools.count(1)
        self._running: dict[int, _Running] = {}
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._received = bytearray()
        self._lost: SandboxError | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._lost is None and self._transport is not None

    def connect(self, transport: Transport, settings: Mapping[str, str]) -> None:
        """Greet the warden; `ready` is done when it answers."""
        self._transport = transport
        self._send(b"H", 0, _fields(*itertools.chain.from_iterable(settings.items())))

    def feed(self, data: bytes) -> None:
        """Bytes that came from the warden, in pieces of any size."""
        self._received += data
        while len(self._received) >= _HEADER.size:
            kind, number, length = _HEADER.unpack_from(self._received)
            end = _HEADER.size + length
            if len(self._received) < end:
                return
            payload = bytes(self._received[_HEADER.size : end])
            del self._received[:end]
            self._heed(kind, number, payload)

    def lost(self, reason: str, cause: str = "died") -> None:
        """The connection ended; everything that waits for an answer hears of it."""
        if self._lost is not None:
            return
        error = self._lost = SandboxError(cause, reason)
        if self._watching is not None:
            self._watching.cancel()
        for running in self._running.values():
            running.killed.set()
            running.room.set()
        waiting: list[asyncio.Future[Any]] = [running.ended for running in self._running.values()]
        for future in (*waiting, *self._answers.values(), self.ready):
            if not future.done():
                future.set_exception(error)
                # Whoever still waits gets it; nobody may be left to.
                future.exception()

    async def run(self, command: Command, *, home: str, ids: tuple[str, str], env: Mapping[str, str]) -> ExecResult:
        """Run a command to its end, its time-out, or its cancellation; in both of these its whole tree is dead."""
        script = _script(command, home)
        if isinstance(script, ExecResult):
            return script
        self._require()
        number = next(self._numbers)
        stdout = bytearray()
        running = self._running[number] = _Running(sink=command.sink or stdout.extend, stdout=stdout)
        mode = ("i" if script.stdin is not None else "") + ("m" if command.merge_stderr else "")
        directory = posixpath.join(home, command.cwd or "")
        given = itertools.chain.from_iterable({**env, **command.env}.items())
        self._send(
            b"R", number, _fields(_encodable(directory), *ids, mode, str(command.max_output), script.text, *given)
        )
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch())
        feeding = None
        if script.stdin is not None:
            feeding = asyncio.ensure_future(self._input(number, running, script.stdin))
        try:
            return await self._wait(number, running, command.timeout)
        finally:
            if feeding is not None:
                feeding.cancel()
            del self._running[number]

    async def end_processes(self) -> None:
        """Kill everything inside but the warden."""
        refusal = await self._ask(b"A", _KILL_TIME)
        if refusal:
            raise SandboxError("hang", refusal.decode(errors="replace"))

    async def ping(self, timeout: float) -> None:
        await self._ask(b"P", timeout)

    async def _watch(self) -> None:
        """A warden that does not answer would otherwise be noticed only when the longest command's time is over."""
        while self._running:
            await asyncio.sleep(_WATCH_EVERY)
            try:
                await self.ping(_WATCH_TIME)
            except SandboxError as error:
                self.lost(str(error), error.cause)

    async def _wait(self, number: int, running: _Running, timeout: float) -> ExecResult:
        deadline = asyncio.timeout(timeout)
        timed_out = False
        try:
            async with deadline:
                code, truncated = await asyncio.shield(running.ended)
        except TimeoutError:
            if not deadline.expired():
                raise
            code, truncated = await self._kill(number, running)
            timed_out = True
        except asyncio.CancelledError:
            await to_the_end(self._quietly_kill(number, running))
            raise
        return ExecResult(
            TIMEOUT_EXIT_CODE if timed_out else code,
            bytes(running.stdout),
            bytes(running.stderr),
            timed_out=timed_out,
            truncated=truncated,
        )

    async def _kill(self, number: int, running: _Running) -> tuple[int, bool]:
        self._send(b"K", number, b"")
        try:
            async with asyncio.timeout(_KILL_TIME):
                await running.killed.wait()
                return await asyncio.shield(running.ended)
        except TimeoutError:
            raise SandboxError("hang", f"a command was not dead {_KILL_TIME:.0f} s after its time-out") from None

    async def _quietly_kill(self, number: int, running: _Running) -> None:
        try:
            await self._kill(number, running)
        except SandboxError:
            return

    async def _input(self, number: int, running: _Running, stdin: bytes | AsyncIterable[bytes]) -> None:
        if isinstance(stdin, bytes):
            await self._input_piece(number, running, stdin)
        else:
            async for piece in stdin:
                await self._input_piece(number, running, piece)
        self._send(b"C", number, b"")

    async def _input_piece(self, number: int, running: _Running, data: bytes) -> None:
        view = memoryview(data)
        while view and self.connected:
            if running.on_its_way >= _WINDOW:
                running.room.clear()
                await running.room.wait()
            piece, view = bytes(view[:_PIECE]), view[_PIECE:]
            running.on_its_way += len(piece)
            self._send(b"I", number, piece)
            if self._transport is not None:
                await self._transport.drain()

    async def _ask(self, kind: bytes, timeout: float) -> bytes:
        self._require()
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._send(kind, number, b"")
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(answer)
        except TimeoutError:
            raise SandboxError("hang", f"the sandbox did not answer within {timeout:.0f} s") from None
        finally:
            del self._answers[number]

    def _send(self, kind: bytes, number: int, payload: bytes) -> None:
        if self._lost is None and self._transport is not None:
            self._transport.write(_HEADER.pack(kind, number, len(payload)) + payload)

    def _require(self) -> None:
        if self._lost is not None:
            raise SandboxError(self._lost.cause, str(self._lost))

    def _heed(self, kind: bytes, number: int, payload: bytes) -> None:
        if kind == b"h":
            if not self.ready.done():
                self.ready.set_result(None)
        elif kind in b"ap":
            if (answer := self._answers.get(number)) is not None and not answer.done():
                answer.set_result(payload)
        elif (running := self._running.get(number)) is not None:
            _note(running, kind, payload)


class WardenSandbox(Sandbox):
    """A sandbox whose commands run under a warden; a backend's own class adds how it is started and closed."""

    def __init__(self, warden: Warden, *, user: str = AGENT, env: Mapping[str, str] | None = None) -> None:
        self.warden = warden
        self._user = user
        self._env = dict(env or {})
        self._closing: asyncio.Task[None] | None = None

    async def run(self, command: Command) -> ExecResult:
        self._require_open()
        ids = self.ids(command.user or self._user)
        result = await self.warden.run(command, home=self.workspace, ids=ids, env=self._env)
        self._require_open()
        return result

    def ids(self, user: str) -> tuple[str, str]:
        """The user and group ids a command runs under; empty where the warden's own are the only ones."""
        if user != AGENT:
            raise ValueError(f"this backend has no user {user!r}; commands run as {AGENT}")
        return "", ""

    async def end_processes(self) -> None:
        self._require_open()
        await self.warden.end_processes()

    async def alive(self) -> bool:
        return self._closing is None and self.warden.connected

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    @abstractmethod
    async def _close(self) -> None:
        """End it for good; called once."""

    def _require_open(self) -> None:
        if self._closing is not None:
            raise SandboxError("closed", "the sandbox was closed")


def container_ids(user: str) -> tuple[str, str]:
    """The ids where the warden is root of a container."""
    known = {AGENT: str(AGENT_ID), ROOT: "0"}
    if user not in known:
        raise ValueError(f"a sandbox has no user {user!r}; choose one of {', '.join(known)}")
    return known[user], known[user]


def base_environment(home: str) -> dict[str, str]:
    """All that a command sees unless it is given more. An allow-list: nothing is taken from our own environment."""
    return {"PATH": PATH, "HOME": home, "USER": AGENT, "LANG": "C.UTF-8", "TERM": "dumb"}


@dataclass(frozen=True, slots=True)
class _Script:
    text: str
    stdin: bytes | AsyncIterable[bytes] | None


def _script(command: Command, home: str) -> _Script | ExecResult:
    """The bash script that runs a command in its directory, or the result of a command no shell can be given."""
    if "\0" in command.text or (command.cwd and "\0" in command.cwd):
        return ExecResult(CANNOT_RUN_EXIT_CODE, b"", b"hermes-rl: a command cannot contain a NUL character\n")
    for name, value in command.env.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a name for an environment variable")
        if "\0" in value:
            raise ValueError(f"the value of {name} contains a NUL character")
    directory = _encodable(posixpath.join(home, command.cwd or ""))
    # On the command's own first line, so that the line numbers in bash's messages are the command's.
    opening = f"cd -- {shlex.quote(directory)} || exit {CANNOT_RUN_EXIT_CODE}; "
    text = _encodable(command.text)
    encoded = text.encode("utf-8", "surrogateescape")
    if len(opening) + len(encoded) <= _LONGEST_ARGUMENT:
        return _Script(opening + text, command.stdin)
    opening = f'LC_ALL=C IFS= read -r -N {len(encoded)} HERMES_RL_COMMAND; {opening}eval "$HERMES_RL_COMMAND"'
    return _Script(opening, _in_front(encoded, command.stdin))


async def _in_front(text: bytes, stdin: bytes | AsyncIterable[bytes] | None) -> AsyncIterable[bytes]:
    yield text
    if isinstance(stdin, bytes):
        yield stdin
    elif stdin is not None:
        async for piece in stdin:
            yield piece


def _note(running: _Running, kind: bytes, payload: bytes) -> None:
    if kind == b"o":
        running.sink(payload)
    elif kind == b"e":
        running.stderr += payload
    elif kind == b"w":
        running.on_its_way -= int.from_bytes(payload)
        running.room.set()
    elif kind == b"x":
        code, truncated = _TWO.unpack(payload)
        if not running.ended.done():
            running.ended.set_result((code, bool(truncated)))
    elif kind == b"k":
        running.killed.set()


def _future() -> "asyncio.Future[tuple[int, bool]]":
    return asyncio.get_running_loop().create_future()


def _fields(*values: str) -> bytes:
    encoded = (value.encode("utf-8", "surrogateescape") for value in values)
    return b"".join(len(value).to_bytes(4) + value for value in encoded)


def _encodable(text: str) -> str:
    """A model can write half a surrogate pair; no argument can hold one."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text
