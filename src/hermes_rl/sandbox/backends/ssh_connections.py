"""SSH connections to one machine, with any number of sessions, each running one Perl program.

Always true: the server's key is checked, and no agent, display or variable is forwarded. The program is sent on
standard input, so no shell has to quote it; what a login shell prints before it is skipped.
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

from hermes_rl.core.errors import SandboxError
from hermes_rl.sandbox.guest_agent.client import PATH
from hermes_rl.sandbox.subprocess_vfork import shield_until_done

# For a reachable server to open a session, and for a connection to close.
_OPEN_TIME = 10.0
_CONNECT_TIME = 15.0
_CONNECT_ATTEMPTS = 4
_MAX_STDERR = 4096
_MAX_LOGIN_OUTPUT = 1024 * 1024
# If the network drops during the upload, the remote process must still end.
_BOOT_TIME = 60
# Arguments: the marker to print, the program's length, the program's arguments.
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
    """The server and the keys of both sides. None means the default of the user's ssh."""

    host: str
    port: int = 22
    username: str | None = None
    key: str | None = None
    known_hosts: str | None = None

    def __str__(self) -> str:
        return f"{self.username + '@' if self.username else ''}{self.host}:{self.port}"


class Session(asyncssh.SSHClientSession[bytes]):
    """One session. `feed` gets the program's standard output; `on_lost` gets the reason when the session ends."""

    def __init__(self, feed: Callable[[bytes], object], on_lost: Callable[[str], object] = lambda _: None) -> None:
        self.opened = False
        self.closed = asyncio.Event()
        self.exit_status: int | None = None
        self.marker = f"\nhermes-rl-{secrets.token_hex(8)}\n".encode()
        self._feed, self._on_lost = feed, on_lost
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._login_output: bytearray | None = bytearray()
        self._stderr = bytearray()
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def stderr(self) -> str:
        """The beginning of its standard error."""
        return self._stderr.decode(errors="replace").strip()

    def write(self, data: bytes) -> None:
        if self._channel is not None and not self._channel.is_closing():
            self._channel.write(data)

    async def drain(self) -> None:
        await self._writable.wait()

    async def end(self, timeout: float) -> bool:
        """Close its standard input and wait for it to exit; abort it otherwise. Returns whether it exited with 0."""
        if self._channel is not None:
            self._channel.write_eof()
            try:
                async with asyncio.timeout(timeout):
                    await self.closed.wait()
            except TimeoutError:
                self.abort()
        return self.exit_status == 0

    def abort(self) -> None:
        if self._channel is not None:
            self._channel.abort()

    # --- callbacks of asyncssh ---

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._channel = chan
        self.opened = True

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if datatype is not None:
            self._stderr += data[: _MAX_STDERR - len(self._stderr)]
        elif self._login_output is None:
            self._feed(data)
        else:
            self._login_output += data
            _, marker, rest = bytes(self._login_output).partition(self.marker)
            if marker:
                self._login_output = None
                self._feed(rest)
            elif len(self._login_output) > _MAX_LOGIN_OUTPUT:
                self._stderr += b"its login shell prints too much"
                self.abort()

    def exit_status_received(self, status: int) -> None:
        self.exit_status = status

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel = None
        self._writable.set()
        self.closed.set()
        self._on_lost("the sandbox's first process is gone" if exc is None else f"the SSH connection was lost: {exc}")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()


class Connections:
    """The connections to one machine: one, and more when the server limits the sessions on each (OpenSSH: to ten)."""

    def __init__(self, address: Address, keepalive: float) -> None:
        self._address = address
        self._keepalive = keepalive
        self._sessions: dict[asyncssh.SSHClientConnection, list[Session]] = {}
        self._max_sessions: float = float("inf")
        self._failure: SandboxError | None = None
        self._failed_at = 0.0
        # One at a time: servers reject bursts of logins, and a refusal tells how many sessions fit on a connection.
        self._gate = asyncio.Lock()

    async def run(self, program: str, arguments: Sequence[str], stdin: str, timeout: float) -> str:
        """Run a program to its end and return what it printed. SandboxError if it fails."""
        output = bytearray()
        session = Session(output.extend)
        try:
            await self.open(session, program, arguments, scrubbed=False)
            session.write(stdin.encode())
            succeeded = await session.end(timeout)
        finally:
            session.abort()
        if not succeeded:
            reason = session.stderr or "the connection was lost or timed out"
            raise SandboxError(
                "start", f"{self._address} cannot run sandboxes, which need Linux, perl and bash: {reason}"
            )
        return output.decode("utf-8", "surrogateescape")

    async def open(self, session: Session, program: str, arguments: Sequence[str], *, scrubbed: bool = True) -> None:
        """Start a program in a new session; `scrubbed` drops the login's environment variables."""
        code = program.encode()
        environment = ["env", "-i", f"PATH={PATH}", "LANG=C.UTF-8"] if scrubbed else []
        boot = ["perl", "-e", _BOOT, session.marker.decode(), str(len(code)), *arguments]
        command = shlex.join(["exec", *environment, *boot])
        requested_at = time.monotonic()
        async with self._gate:
            # Waiters share a connection failure: retrying one after the other would take its timeout each.
            if self._failure is not None and self._failed_at >= requested_at:
                raise SandboxError(self._failure.cause, str(self._failure))
            while not session.opened:
                connection = await self._get_connection()
                # Never cancelled half way: a session that we do not know of cannot be closed.
                await shield_until_done(self._try_open(connection, session, command))
        session.write(code)

    async def close_idle(self) -> None:
        """Close connections without sessions."""
        async with self._gate:
            for connection in [each for each in self._sessions if not self._count_live(each)]:
                connection.close()
                try:
                    async with asyncio.timeout(_OPEN_TIME):
                        await connection.wait_closed()
                except TimeoutError:
                    connection.abort()
                del self._sessions[connection]

    async def _try_open(self, connection: asyncssh.SSHClientConnection, session: Session, command: str) -> None:
        """Open a session on a connection, or record that the connection is full or dead."""
        try:
            async with asyncio.timeout(_OPEN_TIME):
                await connection.create_session(lambda: session, command, request_pty=False, encoding=None)
            self._sessions[connection].append(session)
        except (asyncssh.Error, TimeoutError, OSError) as error:
            live = self._count_live(connection)
            if connection.is_closed() or not isinstance(error, asyncssh.ChannelOpenError):
                connection.abort()
                del self._sessions[connection]
            elif live and not session.opened:
                self._max_sessions = live
                return
            raise SandboxError(
                "start", f"{self._address} did not open a session: {str(error) or 'no answer'}"
            ) from error

    async def _get_connection(self) -> asyncssh.SSHClientConnection:
        self._sessions = {each: sessions for each, sessions in self._sessions.items() if not each.is_closed()}
        for connection in self._sessions:
            if self._count_live(connection) < self._max_sessions:
                return connection
        try:
            connection = await self._connect()
        except SandboxError as failure:
            self._failure, self._failed_at = failure, time.monotonic()
            raise
        self._sessions[connection] = []
        return connection

    def _count_live(self, connection: asyncssh.SSHClientConnection) -> int:
        self._sessions[connection] = [session for session in self._sessions[connection] if not session.closed.is_set()]
        return len(self._sessions[connection])

    async def _connect(self) -> asyncssh.SSHClientConnection:
        for attempt in range(_CONNECT_ATTEMPTS):
            try:
                connection = await asyncssh.connect(**_options(self._address, self._keepalive))
            except (asyncssh.ConnectionLost, ConnectionResetError) as error:
                # The server's reply when too many log in at once (MaxStartups).
                if attempt + 1 == _CONNECT_ATTEMPTS:
                    raise SandboxError("start", _explain_failure(self._address, error)) from error
                await asyncio.sleep(random.uniform(0.1, 0.5) * 2**attempt)
            except TimeoutError as error:
                raise SandboxError("start_timeout", _explain_failure(self._address, error)) from error
            except (asyncssh.Error, OSError, ValueError) as error:
                raise SandboxError("start", _explain_failure(self._address, error)) from error
            else:
                return connection
        raise AssertionError("the last attempt returns or raises")


class _Client(asyncssh.SSHClient):
    """Closes the connection's socket in forked workers, which would otherwise hold it open after we die."""

    _fd: int | None = None

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        # None behind a jump host or proxy of the user's ssh settings; such a session ends with its lease.
        if (socket := conn.get_extra_info("socket")) is not None:
            self._fd = socket.fileno()
            _sockets.add(self._fd)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._fd is not None:
            _sockets.discard(self._fd)


def _options(address: Address, keepalive: float) -> dict[str, Any]:
    optional: dict[str, Any] = {"username": address.username, "client_keys": address.key}
    return {
        **{name: value for name, value in optional.items() if value is not None},
        "client_factory": _Client,
        "host": address.host,
        "port": address.port,
        # Always set: otherwise the user's ssh settings could disable the check.
        "known_hosts": address.known_hosts or _default_known_hosts(),
        "connect_timeout": _CONNECT_TIME,
        "login_timeout": _CONNECT_TIME,
        "keepalive_interval": keepalive,
        "agent_forwarding": False,
        "x11_forwarding": False,
        "env": None,
        "send_env": None,
        "command": None,
    }


def _default_known_hosts() -> list[str] | bytes:
    paths = (Path("~/.ssh/known_hosts").expanduser(), Path("/etc/ssh/ssh_known_hosts"))
    return [str(path) for path in paths if path.is_file()] or b""


def _explain_failure(address: Address, error: Exception) -> str:
    message = f"cannot connect to {address} over SSH: {str(error) or 'no answer'}."
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return message + (
            f" Its key does not match {address.known_hosts or '~/.ssh/known_hosts'}, or is not in it: connect once "
            "with ssh and compare the fingerprint, or set the backend's `known_hosts` to the file that has it."
        )
    if isinstance(error, asyncssh.PermissionDenied):
        return message + (
            " Set the backend's `username`, and its `key` to the path of a private key that this user may log in with; "
            "one with a passphrase must be in ssh-agent."
        )
    if isinstance(error, ValueError | FileNotFoundError):
        return message + " Set the backend's `key` to the path of a private key without passphrase, or use ssh-agent."
    return message + " Check the backend's `host` and `port`, and that the SSH server is running."
