"""The host's client of a guest agent: sends commands and receives their output as frames on one byte stream.

Always true: one connection carries any number of concurrent commands. The policy's output reaches us only inside frames
that the guest agent builds. When the connection is lost, every command in flight fails with a SandboxError.
`guest_agent.pl` is the other end and documents the frames.
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

from hermes_rl.core.errors import SandboxError
from hermes_rl.sandbox import protocol
from hermes_rl.sandbox.protocol import TIMEOUT_EXIT_CODE, Command, ExecResult, Sandbox
from hermes_rl.sandbox.spec import AGENT, ROOT
from hermes_rl.sandbox.subprocess_vfork import shield_until_done

PROGRAM = resources.files("hermes_rl.sandbox.guest_agent").joinpath("guest_agent.pl").read_text()
CANNOT_RUN_EXIT_CODE = 126
PATH = protocol.PATH
AGENT_ID = 1000

_HEADER = struct.Struct("!cII")
_EXIT_STATUS = struct.Struct("!II")
_COUNT = struct.Struct("!I")
# A guest agent sends at most 64 KiB at once.
_MAX_FRAME = 1024 * 1024
# Input in flight to a command that does not read it: more would only fill the guest agent's memory.
_WINDOW = 1024 * 1024
_CHUNK = 64 * 1024
# For the guest agent to kill a process tree, or everything, on a busy machine.
_KILL_TIME = 20.0
# While a command runs: the interval of pings to the guest agent, and the timeout of each.
_WATCH_EVERY = 15.0
_WATCH_TIME = 30.0
# Linux refuses a single argument of 128 KiB; a longer command is sent before its stdin.
_MAX_ARGUMENT = 100_000
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Transport(Protocol):
    """Writes bytes to a guest agent. Pass its output to `GuestAgentClient.feed`, and its end to `mark_lost`."""

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None:
        """Wait while too much is buffered."""
        ...


class QueuedTransport:
    """A Transport for streams with an async write: a queue, which a task of the subclass sends."""

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

    def _take(self, size: int) -> bytes:
        """Remove the next chunk from the queue; wakes writers if there is room again."""
        chunk = bytes(self._outgoing[:size])
        del self._outgoing[:size]
        if not self._outgoing:
            self._waiting.clear()
        if len(self._outgoing) <= _WINDOW:
            self._room.set()
        return chunk


@dataclass(slots=True)
class _RunningCommand:
    sink: Callable[[bytes], object]
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    ended: "asyncio.Future[tuple[int, bool]]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    killed: asyncio.Event = field(default_factory=asyncio.Event)
    in_flight: int = 0
    room: asyncio.Event = field(default_factory=asyncio.Event)


class GuestAgentClient:
    """The connection to the guest agent of one sandbox."""

    def __init__(self) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: Transport | None = None
        self._numbers = itertools.count(1)
        self._running: dict[int, _RunningCommand] = {}
        self._replies: dict[int, asyncio.Future[bytes]] = {}
        self._received = bytearray()
        self._lost: SandboxError | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._lost is None and self._transport is not None

    def connect(self, transport: Transport, settings: Mapping[str, str]) -> None:
        """Send the settings; `ready` is done when the guest agent replies."""
        self._transport = transport
        self._send(b"H", 0, _encode_fields(*itertools.chain.from_iterable(settings.items())))

    def feed(self, data: bytes) -> None:
        """Handle bytes from the guest agent, in chunks of any size."""
        if self._lost is not None:
            return
        self._received += data
        while len(self._received) >= _HEADER.size:
            kind, number, length = _HEADER.unpack_from(self._received)
            if length > _MAX_FRAME:
                self.mark_lost(f"the sandbox announced {length} bytes at once; its connection is corrupt")
                return
            end = _HEADER.size + length
            if len(self._received) < end:
                return
            payload = bytes(self._received[_HEADER.size : end])
            del self._received[:end]
            try:
                self._handle_frame(kind, number, payload)
            except struct.error:
                self.mark_lost(f"the sandbox sent {len(payload)} bytes as {kind!r}; its connection is corrupt")
                return

    def mark_lost(self, reason: str, cause: str = "died") -> None:
        """The connection ended: fail everything that waits for a reply."""
        if self._lost is not None:
            return
        error = self._lost = SandboxError(cause, reason)
        if self._watching is not None:
            self._watching.cancel()
        for running in self._running.values():
            running.killed.set()
            running.room.set()
        waiting: list[asyncio.Future[Any]] = [running.ended for running in self._running.values()]
        for future in (*waiting, *self._replies.values(), self.ready):
            if not future.done():
                future.set_exception(error)
                # Mark it as retrieved: there may be no waiter left.
                future.exception()

    async def run(self, command: Command, *, home: str, ids: tuple[str, str], env: Mapping[str, str]) -> ExecResult:
        """Run a command until it ends, times out or is cancelled. In the last two cases its process tree is dead."""
        script = _build_script(command, home)
        if isinstance(script, ExecResult):
            return script
        self._require_connected()
        number = next(self._numbers)
        stdout = bytearray()
        running = self._running[number] = _RunningCommand(sink=command.sink or stdout.extend, stdout=stdout)
        mode = ("i" if script.stdin is not None else "") + ("m" if command.merge_stderr else "")
        directory = posixpath.join(home, command.cwd or "")
        variables = itertools.chain.from_iterable({**env, **command.env}.items())
        self._send(
            b"R",
            number,
            _encode_fields(_make_encodable(directory), *ids, mode, str(command.max_output), script.text, *variables),
        )
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch())
        sending = None
        if script.stdin is not None:
            sending = asyncio.ensure_future(self._send_input(number, running, script.stdin))
        try:
            return await self._wait(number, running, command.timeout)
        finally:
            if sending is not None:
                sending.cancel()
            del self._running[number]

    async def end_processes(self) -> None:
        """Kill all processes inside except the guest agent."""
        failure = await self._request(b"A", _KILL_TIME)
        if failure:
            raise SandboxError("hang", failure.decode(errors="replace"))

    async def ping(self, timeout: float) -> None:
        await self._request(b"P", timeout)

    async def _watch(self) -> None:
        """Ping while commands run: otherwise a hung guest agent would be noticed only at a command's timeout."""
        while self._running:
            await asyncio.sleep(_WATCH_EVERY)
            try:
                await self.ping(_WATCH_TIME)
            except SandboxError as error:
                self.mark_lost(str(error), error.cause)

    async def _wait(self, number: int, running: _RunningCommand, timeout: float) -> ExecResult:
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
            await shield_until_done(self._kill_quietly(number, running))
            raise
        return ExecResult(
            TIMEOUT_EXIT_CODE if timed_out else code,
            bytes(running.stdout),
            bytes(running.stderr),
            timed_out=timed_out,
            truncated=truncated,
        )

    async def _kill(self, number: int, running: _RunningCommand) -> tuple[int, bool]:
        self._send(b"K", number, b"")
        try:
            async with asyncio.timeout(_KILL_TIME):
                await running.killed.wait()
                return await asyncio.shield(running.ended)
        except TimeoutError:
            raise SandboxError("hang", f"a command was still alive {_KILL_TIME:.0f} s after its timeout") from None

    async def _kill_quietly(self, number: int, running: _RunningCommand) -> None:
        try:
            await self._kill(number, running)
        except SandboxError:
            return

    async def _send_input(self, number: int, running: _RunningCommand, stdin: bytes | AsyncIterable[bytes]) -> None:
        if isinstance(stdin, bytes):
            await self._send_input_chunk(number, running, stdin)
        else:
            async for chunk in stdin:
                await self._send_input_chunk(number, running, chunk)
        self._send(b"C", number, b"")

    async def _send_input_chunk(self, number: int, running: _RunningCommand, data: bytes) -> None:
        view = memoryview(data)
        while view and self.connected:
            if running.in_flight >= _WINDOW:
                running.room.clear()
                await running.room.wait()
            chunk, view = bytes(view[:_CHUNK]), view[_CHUNK:]
            running.in_flight += len(chunk)
            self._send(b"I", number, chunk)
            if self._transport is not None:
                await self._transport.drain()

    async def _request(self, kind: bytes, timeout: float) -> bytes:
        self._require_connected()
        number = next(self._numbers)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        self._send(kind, number, b"")
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(reply)
        except TimeoutError:
            raise SandboxError("hang", f"the sandbox did not answer within {timeout:.0f} s") from None
        finally:
            del self._replies[number]

    def _send(self, kind: bytes, number: int, payload: bytes) -> None:
        if self._lost is None and self._transport is not None:
            self._transport.write(_HEADER.pack(kind, number, len(payload)) + payload)

    def _require_connected(self) -> None:
        if self._lost is not None:
            raise SandboxError(self._lost.cause, str(self._lost))

    def _handle_frame(self, kind: bytes, number: int, payload: bytes) -> None:
        if kind == b"h":
            if not self.ready.done():
                self.ready.set_result(None)
        elif kind in b"ap":
            if (reply := self._replies.get(number)) is not None and not reply.done():
                reply.set_result(payload)
        elif (running := self._running.get(number)) is not None:
            _handle_command_frame(running, kind, payload)


class GuestAgentSandbox(Sandbox):
    """A sandbox whose commands run under a guest agent; subclasses add how it is started and closed."""

    def __init__(self, guest: GuestAgentClient, *, user: str = AGENT, env: Mapping[str, str] | None = None) -> None:
        self.guest = guest
        self._user = user
        self._env = dict(env or {})
        self._closing: asyncio.Task[None] | None = None

    async def run(self, command: Command) -> ExecResult:
        self._require_open()
        ids = self.ids(command.user or self._user)
        result = await self.guest.run(command, home=self.workspace, ids=ids, env=self._env)
        self._require_open()
        return result

    def ids(self, user: str) -> tuple[str, str]:
        """The uid and gid a command runs under; empty if the guest agent's own are the only ones."""
        if user != AGENT:
            raise ValueError(f"this backend has no user {user!r}; commands run as {AGENT}")
        return "", ""

    async def end_processes(self) -> None:
        self._require_open()
        await self.guest.end_processes()

    async def alive(self) -> bool:
        return self._closing is None and self.guest.connected

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    @abstractmethod
    async def _close(self) -> None:
        """Close it for good; called once."""

    def _require_open(self) -> None:
        if self._closing is not None:
            raise SandboxError("closed", "the sandbox was closed")


def container_ids(user: str) -> tuple[str, str]:
    """The uid and gid of a user where the guest agent is root of a container."""
    users = {AGENT: str(AGENT_ID), ROOT: "0"}
    if user not in users:
        raise ValueError(f"a sandbox has no user {user!r}; choose one of {', '.join(users)}")
    return users[user], users[user]


def base_environment(home: str) -> dict[str, str]:
    """The default environment of a command. Nothing is inherited from our own environment."""
    return {"PATH": PATH, "HOME": home, "USER": AGENT, "LANG": "C.UTF-8", "TERM": "dumb"}


@dataclass(frozen=True, slots=True)
class _Script:
    text: str
    stdin: bytes | AsyncIterable[bytes] | None


def _build_script(command: Command, home: str) -> _Script | ExecResult:
    """The bash script that runs a command in its directory; an ExecResult for a command that no shell can take."""
    if "\0" in command.text or (command.cwd and "\0" in command.cwd):
        return ExecResult(CANNOT_RUN_EXIT_CODE, b"", b"hermes-rl: a command cannot contain a NUL character\n")
    for name, value in command.env.items():
        if not _VARIABLE_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a name for an environment variable")
        if "\0" in value:
            raise ValueError(f"the value of {name} contains a NUL character")
    directory = _make_encodable(posixpath.join(home, command.cwd or ""))
    # On the command's own first line, so that line numbers in bash's messages are the command's.
    prefix = f"cd -- {shlex.quote(directory)} || exit {CANNOT_RUN_EXIT_CODE}; "
    text = _make_encodable(command.text)
    encoded = text.encode("utf-8", "surrogateescape")
    if len(prefix) + len(encoded) <= _MAX_ARGUMENT:
        return _Script(prefix + text, command.stdin)
    prefix = f'LC_ALL=C IFS= read -r -N {len(encoded)} HERMES_RL_COMMAND; {prefix}eval "$HERMES_RL_COMMAND"'
    return _Script(prefix, _prepend(encoded, command.stdin))


async def _prepend(text: bytes, stdin: bytes | AsyncIterable[bytes] | None) -> AsyncIterable[bytes]:
    yield text
    if isinstance(stdin, bytes):
        yield stdin
    elif stdin is not None:
        async for chunk in stdin:
            yield chunk


def _handle_command_frame(running: _RunningCommand, kind: bytes, payload: bytes) -> None:
    if kind == b"o":
        running.sink(payload)
    elif kind == b"e":
        running.stderr += payload
    elif kind == b"w":
        running.in_flight -= _COUNT.unpack(payload)[0]
        running.room.set()
    elif kind == b"x":
        code, truncated = _EXIT_STATUS.unpack(payload)
        if not running.ended.done():
            running.ended.set_result((code, bool(truncated)))
    elif kind == b"k":
        running.killed.set()


def _encode_fields(*values: str) -> bytes:
    encoded = (value.encode("utf-8", "surrogateescape") for value in values)
    return b"".join(len(value).to_bytes(4) + value for value in encoded)


def _make_encodable(text: str) -> str:
    """Replace lone surrogates, which a model can write but no argument can hold."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text
