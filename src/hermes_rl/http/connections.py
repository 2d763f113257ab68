"""Limits on the connections of an HTTP server: how many, how many per client, and how slowly a request may arrive.

Always true: a connection that works on a response is never closed here. When the server is full, a new connection takes
the place of an idle one, else of the oldest half-sent request head, else of the body that stalled longest; otherwise it
is refused with 503. Everything that is closed or refused is counted and logged, at most one line per kind and interval.
"""

import asyncio
import ipaddress
import logging
import resource
from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from hermes_rl.http.errors import Problem

log = logging.getLogger(__name__)

# More would let programs that we start take seconds to close every possible descriptor.
MAX_OPEN_FILES = 65_536
MAX_CONNECTIONS = 16_384
MAX_BACKLOG = 2048
CHECK_SECONDS = 1.0


class Phase(StrEnum):
    """What a connection waits for: a next request, the rest of a request's head or body, or the application."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    RESPONSE = "response"


class CloseReason(StrEnum):
    SLOW_HEAD = "request heads too slow"
    SLOW_BODY = "request bodies too slow"
    EVICTED = "half-sent requests closed for new connections"
    IDLE = "idle connections closed for new ones"
    FULL = "connections refused, server full"
    CLIENT_FULL = "connections refused, too many from one client"


NEXT_STEPS = {
    CloseReason.SLOW_HEAD: "look for a client that connects without sending a request",
    CloseReason.SLOW_BODY: "look for a client that stops in the middle of an upload, or a broken network",
    CloseReason.EVICTED: "look for a client that opens connections without finishing its requests",
    CloseReason.IDLE: "no action needed unless requests fail; a higher `ulimit -Hn` allows more connections",
    CloseReason.FULL: "raise `ulimit -Hn`, or run several servers",
    CloseReason.CLIENT_FULL: "let that client reuse its connections",
}
# The response before the connection closes. An idle connection gets none.
RESPONSES = {
    CloseReason.SLOW_HEAD: (408, Problem(kind="too_slow", message="the request head did not arrive in time")),
    CloseReason.SLOW_BODY: (408, Problem(kind="too_slow", message="the request body arrives too slowly")),
    CloseReason.EVICTED: (503, Problem(kind="too_many_connections", message="the request was not finished; retry")),
    CloseReason.FULL: (503, Problem(kind="too_many_connections", message="the server is full; retry later")),
    CloseReason.CLIENT_FULL: (
        503,
        Problem(kind="too_many_connections", message="too many connections from this client; reuse them"),
    ),
}


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Seconds for a request head; seconds without a byte of a body, and its minimum rate after as many seconds.

    `client_connections` limits each client except loopback, None a quarter of all. A run's components all connect from
    127.0.0.1, so an address there says nothing about who connects. `listener_connections` limits each private listener
    of the gateway, which belongs to one rollout.
    """

    head_seconds: float = 20.0
    body_stall_seconds: float = 20.0
    body_bytes_per_second: float = 1024.0
    idle_seconds: float = 75.0
    max_connections: int | None = None
    client_connections: int | None = None
    listener_connections: int = 512
    log_seconds: float = 30.0


class Connection(Protocol):
    """What the limits need of a connection."""

    client_key: Hashable | None

    def waits_for_us(self) -> bool:
        """Whether the request stands still because of the server, which reads no further for now."""

    def end(self, status: int, problem: Problem | None) -> None:
        """Close it, after this response if there is a problem to report and nothing was sent."""


@dataclass(slots=True)
class _Progress:
    phase: Phase
    since: float
    last_byte: float
    received: int = 0


@dataclass(slots=True)
class _Client:
    open: int = 0
    idle: OrderedDict[Connection, None] = field(default_factory=OrderedDict)


class Connections:
    """The open connections of one server, or of all listeners of one gateway."""

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self.limits = limits or ConnectionLimits()
        self.max_connections = self.limits.max_connections or default_max_connections()
        self._progress: dict[Connection, _Progress] = {}
        # Oldest first.
        self._by_phase: dict[Phase, OrderedDict[Connection, None]] = {phase: OrderedDict() for phase in Phase}
        self._clients: dict[Hashable, _Client] = {}
        self._check: asyncio.TimerHandle | None = None
        self._check_due = 0.0
        self._counts: dict[CloseReason, Counter[Hashable]] = {reason: Counter() for reason in CloseReason}
        self._log_after: dict[CloseReason, float] = {}

    def __len__(self) -> int:
        return len(self._progress)

    def opened(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> bool:
        """Count a new connection; False if it was refused, and closed."""
        if (refusal := self._make_room(connection.client_key)) is not None:
            self._end(connection, refusal)
            # No timer of ours runs yet when everything is refused.
            self._schedule(loop)
            return False
        now = loop.time()
        self._progress[connection] = _Progress(Phase.HEAD, now, now)
        self._by_phase[Phase.HEAD][connection] = None
        if connection.client_key is not None:
            self._clients.setdefault(connection.client_key, _Client()).open += 1
        self._schedule(loop)
        return True

    def closed(self, connection: Connection) -> None:
        if (progress := self._progress.pop(connection, None)) is None:
            return
        del self._by_phase[progress.phase][connection]
        if (client := self._clients.get(connection.client_key)) is not None:
            client.idle.pop(connection, None)
            client.open -= 1
            if not client.open:
                del self._clients[connection.client_key]

    def received(self, connection: Connection, size: int, now: float) -> None:
        if (progress := self._progress.get(connection)) is None:
            return
        if progress.phase is Phase.IDLE:
            self.enter(connection, Phase.HEAD, now)
        progress.last_byte = now
        progress.received += size

    def enter(self, connection: Connection, phase: Phase, now: float) -> None:
        progress = self._progress.get(connection)
        if progress is None or progress.phase is phase:
            return
        del self._by_phase[progress.phase][connection]
        self._by_phase[phase][connection] = None
        progress.phase, progress.since, progress.last_byte, progress.received = phase, now, now, 0
        if (client := self._clients.get(connection.client_key)) is not None:
            if phase is Phase.IDLE:
                client.idle[connection] = None
            else:
                client.idle.pop(connection, None)

    def _make_room(self, client_key: Hashable | None) -> CloseReason | None:
        """Close what a new connection may replace; the reason to refuse it if there is nothing."""
        client = None if client_key is None else self._clients.get(client_key)
        if client is not None and client.open >= self._client_limit(client_key):
            if not client.idle:
                return CloseReason.CLIENT_FULL
            self._end(next(iter(client.idle)), CloseReason.IDLE)
        if len(self) < self.max_connections * 9 // 10:
            return None
        idle = self._by_phase[Phase.IDLE]
        if idle:
            self._end(next(iter(idle)), CloseReason.IDLE)
        if len(self) < self.max_connections:
            return None
        if heads := self._by_phase[Phase.HEAD]:
            self._end(next(iter(heads)), CloseReason.EVICTED)
            return None
        stalled = self._stalled_body()
        if stalled is None:
            return CloseReason.FULL
        self._end(stalled, CloseReason.EVICTED)
        return None

    def _stalled_body(self) -> Connection | None:
        """The body without a byte for longest, of the oldest few: looking at all would cost too much per connection."""
        oldest = [connection for connection, _ in zip(self._by_phase[Phase.BODY], range(32), strict=False)]
        waiting = [connection for connection in oldest if not connection.waits_for_us()]
        return min(waiting, key=lambda connection: self._progress[connection].last_byte, default=None)

    def _client_limit(self, client_key: Hashable) -> int:
        if not isinstance(client_key, str):
            return self.limits.listener_connections
        return self.limits.client_connections or max(1, self.max_connections // 4)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._check is None:
            self._check_due = loop.time() + CHECK_SECONDS
            self._check = loop.call_at(self._check_due, self._check_all, loop)

    def _check_all(self, loop: asyncio.AbstractEventLoop) -> None:
        self._check = None
        now = loop.time()
        if (late := now - self._check_due) > CHECK_SECONDS / 2:
            # This process stood still, and what clients sent in the meantime may be unread.
            for progress in self._progress.values():
                progress.since += late
                progress.last_byte += late
        for connection in list(self._by_phase[Phase.HEAD]):
            # Oldest first.
            if now - self._progress[connection].since < self.limits.head_seconds:
                break
            self._end(connection, CloseReason.SLOW_HEAD)
        for connection in list(self._by_phase[Phase.BODY]):
            self._check_body(connection, self._progress[connection], now)
        for connection in list(self._by_phase[Phase.IDLE]):
            if now - self._progress[connection].since < self.limits.idle_seconds:
                break
            connection.end(0, None)
            self.closed(connection)
        self._log(now)
        if self._progress or any(self._counts.values()):
            self._schedule(loop)

    def _check_body(self, connection: Connection, progress: _Progress, now: float) -> None:
        if connection.waits_for_us():
            progress.since += CHECK_SECONDS
            progress.last_byte = now
            return
        limits = self.limits
        allowed = limits.body_stall_seconds + progress.received / limits.body_bytes_per_second
        if now - progress.last_byte > limits.body_stall_seconds or now - progress.since > allowed:
            self._end(connection, CloseReason.SLOW_BODY)

    def _end(self, connection: Connection, reason: CloseReason) -> None:
        self._counts[reason][connection.client_key] += 1
        connection.end(*RESPONSES.get(reason, (0, None)))
        self.closed(connection)

    def _log(self, now: float) -> None:
        for reason, counts in self._counts.items():
            if counts and now >= self._log_after.get(reason, now):
                [(client, count)] = counts.most_common(1)
                log.warning(
                    "%d %s (%d of them from %s); %d of at most %d connections are open; %s",
                    counts.total(),
                    reason,
                    count,
                    client if isinstance(client, str) else "this machine" if client is None else "one sandbox",
                    len(self),
                    self.max_connections,
                    NEXT_STEPS[reason],
                )
                counts.clear()
                self._log_after[reason] = now + self.limits.log_seconds


def address_key(host: str | None) -> str | None:
    """What is counted as one client: an IPv4 address or a /64 of IPv6; None for loopback and for no address."""
    if host is None:
        return None
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return None if address.is_loopback else str(ipaddress.ip_network((address, 64), strict=False))
        address = address.ipv4_mapped
    return None if address.is_loopback else str(address)


def default_max_connections() -> int:
    """Half of the files this process may open; the rest is for the backlog, databases, logs and the like."""
    return max(1, min(_open_files() // 2, MAX_CONNECTIONS))


def listen_backlog() -> int:
    """Connections that may wait to be accepted. An event loop accepts all of them before it looks at the first."""
    return max(1, min(_open_files() // 4, MAX_BACKLOG))


def _open_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else soft


def raise_file_limit() -> None:
    """Let this process open as many files as it is permitted to, at most MAX_OPEN_FILES."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
