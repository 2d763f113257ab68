"""Connections to a machine over SSH: sessions on it, as many as are wanted, each running one Perl program.

Always true: the server's key is checked; nothing of ours goes along, no agent, no display, no variable. A program comes
after its command, on standard input, so no shell has to quote it; what a login shell prints first is passed over.
"""

import asyncio
import os
import random
import secrets
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from hermes_rl.errors import SandboxError
from hermes_rl.sandbox.child import to_the_end
from hermes_rl.sandbox.warden import PATH

# For a server that is there to take a session, and to see a connection end.
_OPEN_TIME = 10.0
_CONNECT_TIME = 15.0
_CONNECT_ATTEMPTS = 4
_LONGEST_COMPLAINT = 4096
_LONGEST_GREETING = 1024 * 1024
# A server whose network dropped in the middle of this must not keep the process.
_BOOT_TIME = 60
# Arguments: the mark to print, the program's length, and those of the program.
_BOOT = (
    f"alarm {_BOOT_TIME}; $| = 1; print shift; my ($n, $p) = (shift, q()); "
    "while (length $p < $n) { sysread STDIN, $p, $n - length $p, length $p or exit 1 } "
    "alarm 0; eval $p; die $@ if $@"
)
_sockets: set[int] = set()


def _close_sockets() -> None:
    for fd in _sockets:
        os.close(fd)
    _sockets.clear()


os.register_at_fork(after_in_child=_close_sockets)


@dataclass(frozen=True, slots=True)
class Address:
    """Whom to connect to, and by which keys both sides are known. None is what the user's ssh would take."""

    host: str
    port: int = 22
    username: str | None = None
    key: str | None = None
    known_hosts: str | None = None

    def __str__(self) -> str:
        return f"{self.username + '@' if self.username else ''}{self.host}:{self.port}"


class Session(asyncssh.SSHClientSession[bytes]):
    """One session: its program's standard output goes to `feed`; `lost` is told why it ended."""

    def __init__(self, feed: Callable[[bytes], object], lost: Callable[[str], object] = lambda _: None) -> None:
        self.opened = False
        self.closed = asyncio.Event()
        self.exit_status: int | None = None
        self.mark = f"\nhermes-rl-{secrets.token_hex(8)}\n".encode()
        self._feed, self._lost = feed, lost
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._greeting: bytearray | None = bytearray()
        self._complaints = bytearray()
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def complaints(self) -> str:
        """What it said on standard error, the beginning."""
        return self._complaints.decode(errors="replace").strip()

    def write(self, data: bytes) -> None:
        if self._channel is not None and not self._channel.is_closing():
            self._channel.write(data)

    async def drain(self) -> None:
        await self._writable.wait()

    async def end(self, timeout: float) -> bool:
        """Close its standard input and wait until it ended by itself; otherwise drop it. Whether all was well."""
        if self._channel is not None:
            self._channel.write_eof()
            try:
                async with asyncio.timeout(timeout):
                    await self.closed.wait()
            except TimeoutError:
                self.drop()
        return self.exit_status == 0

    def drop(self) -> None:
        if self._channel is not None:
            self._channel.abort()

    # --- what the connection tells us ---

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._channel = chan
        self.opened = True

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if datatype is not None:
            self._complaints += data[: _LONGEST_COMPLAINT - len(self._complaints)]
        elif self._greeting is None:
            self._feed(data)
        else:
            self._greeting += data
            _, mark, rest = bytes(self._greeting).partition(self.mark)
            if mark:
                self._greeting = None
                self._feed(rest)
            elif len(self._greeting) > _LONGEST_GREETING:
                self._complaints += b"its login shell prints without end"
                self.drop()

    def exit_status_received(self, status: int) -> None:
        self.exit_status = status

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel = None
        self._writable.set()
        self.closed.set()
        self._lost("the sandbox's first process is gone" if exc is None else f"the SSH connection was lost: {exc}")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()


class Connections:
    """The connections to one machine: one, and more where its server allows only so many sessions on each.

    OpenSSH allows ten unless told otherwise.
    """

    def __init__(self, address: Address, keepalive: float) -> None:
        self._address = address
        self._keepalive = keepalive
        self._sessions: dict[asyncssh.SSHClientConnection, list[Session]] = {}
        self._room: float = float("inf")
        self._failure: SandboxError | None = None
        self._failed_at = 0.0
        # One at a time: a server turns away those that come in crowds, and a refusal tells for how many it has room.
        self._gate = asyncio.Lock()

    async def run(self, program: str, arguments: Sequence[str], given: str, timeout: float) -> str:
        """Run a program to its end with some input; what it printed. SandboxError when it fails."""
        said = bytearray()
        session = Session(said.extend)
        try:
            await self.open(session, program, arguments, scrubbed=False)
            session.write(given.encode())
            well = await session.end(timeout)
        finally:
            session.drop()
        if not well:
            reason = session.complaints or "the connection was lost, or it took too long"
            raise SandboxError(
                "start", f"{self._address} cannot hold sandboxes, which need Linux, perl and bash: {reason}"
            )
        return said.decode("utf-8", "surrogateescape")

    async def open(self, session: Session, program: str, arguments: Sequence[str], *, scrubbed: bool = True) -> None:
        """Start a program in a new session; without the variables of the login if it is `scrubbed`."""
        code = program.encode()
        environment = ["env", "-i", f"PATH={PATH}", "LANG=C.UTF-8"] if scrubbed else []
        boot = ["perl", "-e", _BOOT, session.mark.decode(), str(len(code)), *arguments]
        command = shlex.join(["exec", *environment, *boot])
        asked = time.monotonic()
        async with self._gate:
            # Those who waited while a connection failed share the failure: each in turn would wait as long again.
            if self._failure is not None and self._failed_at >= asked:
                raise SandboxError(self._failure.cause, str(self._failure))
            while not session.opened:
                connection = await self._with_room()
                # Never cancelled half way: a session that we do not know of could not be closed.
                await to_the_end(self._try(connection, session, command))
        session.write(code)

    async def close_idle(self) -> None:
        """Close the connections that no session needs."""
        async with self._gate:
            for connection in [one for one in self._sessions if not self._live(one)]:
                connection.close()
                try:
                    async with asyncio.timeout(_OPEN_TIME):
                        await connection.wait_closed()
                except TimeoutError:
                    connection.abort()
                del self._sessions[connection]

    async def _try(self, connection: asyncssh.SSHClientConnection, session: Session, command: str) -> None:
        """Open a session on a connection, or note that it is full or dead."""
        try:
            async with asyncio.timeout(_OPEN_TIME):
                await connection.create_session(lambda: session, command, request_pty=False, encoding=None)
            self._sessions[connection].append(session)
        except (asyncssh.Error, TimeoutError, OSError) as error:
            live = self._live(connection)
            if connection.is_closed() or not isinstance(error, asyncssh.ChannelOpenError):
                connection.abort()
                del self._sessions[connection]
            elif live and not session.opened:
                self._room = live
                return
            raise SandboxError(
                "start", f"{self._address} did not open a session: {str(error) or 'no answer'}"
            ) from error

    async def _with_room(self) -> asyncssh.SSHClientConnection:
        self._sessions = {one: sessions for one, sessions in self._sessions.items() if not one.is_closed()}
        for connection in self._sessions:
            if self._live(connection) < self._room:
                return connection
        try:
            connection = await self._connect()
        except SandboxError as failure:
            self._failure, self._failed_at = failure, time.monotonic()
            raise
        self._sessions[connection] = []
        return connection

    def _live(self, connection: asyncssh.SSHClientConnection) -> int:
        self._sessions[connection] = [one for one in self._sessions[connection] if not one.closed.is_set()]
        return len(self._sessions[connection])

    async def _connect(self) -> asyncssh.SSHClientConnection:
        for attempt in range(_CONNECT_ATTEMPTS):
            try:
                connection = await asyncssh.connect(**_options(self._address, self._keepalive))
            except (asyncssh.ConnectionLost, ConnectionResetError) as error:
                # So a server answers when too many log in at once (MaxStartups).
                if attempt + 1 == _CONNECT_ATTEMPTS:
                    raise SandboxError("start", _why_not(self._address, error)) from error
                await asyncio.sleep(random.uniform(0.1, 0.5) * 2**attempt)
            except TimeoutError as error:
                raise SandboxError("start_timeout", _why_not(self._address, error)) from error
            except (asyncssh.Error, OSError, ValueError) as error:
                raise SandboxError("start", _why_not(self._address, error)) from error
            else:
                return connection
        raise AssertionError("the last attempt returns or raises")


class _Client(asyncssh.SSHClient):
    """Keeps the connection's socket from workers that our process forks: they would hold it open when we die."""

    _fd: int | None = None

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        # There is none where the user's settings for ssh name a jump host or a proxy; its end comes with the lease.
        if (socket := conn.get_extra_info("socket")) is not None:
            self._fd = socket.fileno()
            _sockets.add(self._fd)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._fd is not None:
            _sockets.discard(self._fd)


def _options(address: Address, keepalive: float) -> dict[str, Any]:
    given: dict[str, Any] = {"username": address.username, "client_keys": address.key}
    return {
        **{name: value for name, value in given.items() if value is not None},
        "client_factory": _Client,
        "host": address.host,
        "port": address.port,
        # Always named: left out, the user's settings for ssh could switch the check off.
        "known_hosts": address.known_hosts or _users_known_hosts(),
        "connect_timeout": _CONNECT_TIME,
        "login_timeout": _CONNECT_TIME,
        "keepalive_interval": keepalive,
        "agent_forwarding": False,
        "x11_forwarding": False,
        "env": None,
        "send_env": None,
        "command": None,
    }


def _users_known_hosts() -> list[str] | bytes:
    paths = (Path("~/.ssh/known_hosts").expanduser(), Path("/etc/ssh/ssh_known_hosts"))
    return [str(path) for path in paths if path.is_file()] or b""


def _why_not(address: Address, error: Exception) -> str:
    message = f"cannot connect to {address} over SSH: {str(error) or 'no answer'}."
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return message + (
            f" Its key is not the one in {address.known_hosts or '~/.ssh/known_hosts'}, or there is none: connect once "
            "with ssh and compare the fingerprint, or set the backend's `known_hosts` to the file that has it."
        )
    if isinstance(error, asyncssh.PermissionDenied):
        return message + (
            " Set the backend's `username`, and its `key` to the path of a private key that this user may log in with; "
            "one with a passphrase must be in ssh-agent."
        )
    if isinstance(error, ValueError | FileNotFoundError):
        return message + " Set the backend's `key` to the path of a private key without passphrase, or use ssh-agent."
    return message + " See that the backend's `host` and `port` are right and that the SSH server there is running."
