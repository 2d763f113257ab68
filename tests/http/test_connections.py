"""Clients that do not finish their requests: they are closed in time, counted, and never keep others out."""

import asyncio
import logging
import resource
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from hermes_rl.http import connections
from hermes_rl.http.connections import ConnectionLimits, Connections, Phase, address_key, default_max_connections
from hermes_rl.http.errors import Problem
from hermes_rl.http.server import listen, serve_in_background
from tests.support.slow_clients import WAIT_S, SlowClients, limited_api

SHORT = ConnectionLimits(head_seconds=0.5, body_stall_seconds=0.5, log_seconds=600.0)
HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
POST = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n"

Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class EchoSize:
    """Answers the size of the body; `/wait` reads it only when `go` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/wait":
            await self.go.wait()
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size, more = size + len(message.get("body", b"")), message.get("more_body", False)
        text = str(size).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
        await send({"type": "http.response.body", "body": text})


@asynccontextmanager
async def serving(limits: ConnectionLimits) -> AsyncIterator[tuple[EchoSize, int]]:
    app = EchoSize()
    with pytest.MonkeyPatch.context() as patch, listen("127.0.0.1", 0) as listening:
        patch.setattr(connections, "CHECK_SECONDS", 0.1)
        async with serve_in_background(app, listening, limits=limits) as url:
            yield app, int(url.rpartition(":")[2])


async def connect(port: int, data: bytes = b"") -> Line:
    line = await asyncio.open_connection("127.0.0.1", port)
    line[1].write(data)
    return line


async def rest(line: Line, seconds: float = 10.0) -> bytes:
    """What the server still sends before it closes the connection."""
    async with asyncio.timeout(seconds):
        try:
            return await line[0].read()
        except ConnectionResetError:
            return b""
        finally:
            line[1].close()


async def get(port: int) -> bytes:
    return await rest(await connect(port, HEAD + b"Connection: close\r\n\r\n"))


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        pytest.param(b"", b"head did not arrive", id="nothing"),
        pytest.param(HEAD, b"head did not arrive", id="half a head"),
        pytest.param(POST + b"x" * 100, b"body arrives too slowly", id="half a body"),
    ],
)
async def test_a_half_sent_request_is_closed_with_the_reason(sent: bytes, said: bytes) -> None:
    async with serving(SHORT) as (_, port):
        answer = await rest(await connect(port, sent))
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert said in answer


async def test_a_head_that_arrives_byte_by_byte_has_the_same_deadline() -> None:
    async with serving(SHORT) as (_, port):
        line = await connect(port)

        async def drip() -> None:
            for number in HEAD * 10:
                line[1].write(bytes([number]))
                await asyncio.sleep(0.1)

        dripping = asyncio.create_task(drip())
        assert b" 408 " in await rest(line)
        dripping.cancel()


async def test_a_body_below_the_minimum_rate_is_closed() -> None:
    async with serving(SHORT) as (_, port):
        line = await connect(port, POST)

        async def drip() -> None:
            while True:
                line[1].write(b"x")
                await asyncio.sleep(0.1)

        dripping = asyncio.create_task(drip())
        assert b"body arrives too slowly" in await rest(line)
        dripping.cancel()


async def test_a_body_that_the_application_does_not_read_yet_is_not_slow() -> None:
    async with serving(SHORT) as (app, port):
        line = await connect(port, b"POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + b"x" * 299_000)
        await asyncio.sleep(1.2)
        app.go.set()
        line[1].write(b"x" * 1_000)
        assert await line[0].readuntil(b"300000")
        line[1].close()


async def test_a_slow_response_is_not_a_slow_request() -> None:
    async with serving(SHORT) as (app, port):
        line = await connect(port, b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(1.2)
        app.go.set()
        assert (await line[0].readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
        line[1].close()


async def test_when_full_the_idle_connection_makes_room_first() -> None:
    async with serving(ConnectionLimits(max_connections=4)) as (_, port):
        idle = await connect(port, HEAD + b"\r\n")
        await idle[0].readuntil(b"\r\n\r\n0")
        half = [await connect(port, HEAD) for _ in range(2)]
        assert b" 200 " in await get(port)
        assert await rest(idle) == b""
        for line in half:
            line[1].write(b"\r\n")
            assert (await line[0].readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
            line[1].close()


async def test_when_full_the_oldest_half_sent_request_makes_room() -> None:
    async with serving(ConnectionLimits(max_connections=4)) as (_, port):
        body = await connect(port, POST)
        await asyncio.sleep(0.1)
        heads = [await connect(port, HEAD) for _ in range(3)]
        for _ in range(3):
            assert b" 200 " in await get(port)
        assert b" 503 " in await rest(heads[0])
        body[1].write(b"x" * 100_000)
        assert await body[0].readuntil(b"100000")
        for line in (*heads, body):
            line[1].close()


async def test_requests_being_answered_are_never_closed_for_others() -> None:
    async with serving(ConnectionLimits(max_connections=2)) as (app, port):
        waiting = [await connect(port, b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(2)]
        await asyncio.sleep(0.2)
        refused = await rest(await connect(port))
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after" in refused
        app.go.set()
        for line in waiting:
            assert (await line[0].readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
            line[1].close()


class _Closable:
    """A connection whose end is only noted."""

    def __init__(self, client_key: str | None) -> None:
        self.client_key: Hashable | None = client_key
        self.ended = self.paused = False

    def waits_for_us(self) -> bool:
        return self.paused

    def end(self, status: int, problem: Problem | None) -> None:
        self.ended = True


class _Loop:
    """An event loop whose clock the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, Callable[..., object], tuple[object, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[..., object], *arguments: object) -> None:
        self._calls.append((when, call, arguments))

    def advance(self, seconds: float, step: float = 0.5) -> None:
        """In steps; one long step is a process that stood still."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + step)
            due, self._calls = (
                [one for one in self._calls if one[0] <= self.now],
                [one for one in self._calls if one[0] > self.now],
            )
            for _, call, arguments in due:
                call(*arguments)


@pytest.fixture
def loop() -> Any:
    return _Loop()


@pytest.fixture
def uploading(loop: Any) -> tuple[Connections, _Closable]:
    uploads, client = Connections(ConnectionLimits()), _Closable(None)
    uploads.opened(client, loop)
    uploads.enter(client, Phase.BODY, loop.now)
    return uploads, client


@pytest.mark.parametrize(
    ("every", "size", "ends"), [(19, 40_000, False), (1, 1_100, False), (1, 900, True), (21, 40_000, True)]
)
def test_a_body_may_take_long_but_neither_stall_nor_drip(
    loop: Any, uploading: tuple[Connections, _Closable], every: float, size: int, ends: bool
) -> None:
    uploads, client = uploading
    for _ in range(int(300 / every)):
        loop.advance(every)
        uploads.received(client, size, loop.now)
    assert client.ended is ends


def test_a_body_does_not_age_while_the_server_does_not_read(
    loop: Any, uploading: tuple[Connections, _Closable]
) -> None:
    client = uploading[1]
    client.paused = True
    loop.advance(300)
    assert not client.ended
    client.paused = False
    loop.advance(23)
    assert client.ended


def test_a_process_that_stood_still_blames_no_client(loop: Any, uploading: tuple[Connections, _Closable]) -> None:
    uploads, client = uploading
    loop.advance(10)
    loop.advance(60, step=60)
    assert not client.ended
    uploads.received(client, 50_000, loop.now)
    loop.advance(15)
    assert not client.ended


def test_what_was_closed_is_logged_with_its_number_and_a_next_step_once_in_a_while(
    loop: Any, caplog: pytest.LogCaptureFixture
) -> None:
    held = Connections(ConnectionLimits())
    with caplog.at_level(logging.WARNING, "hermes_rl.http.connections"):
        for clients in (5, 3, 4):
            for _ in range(clients):
                held.opened(_Closable(None), loop)
            loop.advance(22)
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("5 request heads too slow (5 of them from this machine); 0 of at most")
    assert "look for a client" in first
    assert second.startswith("3 request heads too slow")


def test_one_address_has_a_quarter_of_the_connections(loop: Any) -> None:
    held = Connections(ConnectionLimits(max_connections=8))
    assert [held.opened(_Closable("192.0.2.1"), loop) for _ in range(3)] == [True, True, False]
    assert held.opened(_Closable("192.0.2.2"), loop)


def test_an_address_at_its_limit_loses_its_own_idle_connection(loop: Any) -> None:
    held = Connections(ConnectionLimits(max_connections=8))
    other, idle, busy = _Closable("192.0.2.2"), _Closable("192.0.2.1"), _Closable("192.0.2.1")
    for one in (other, idle, busy):
        held.opened(one, loop)
    for one in (other, idle):
        held.enter(one, Phase.IDLE, 0.0)
    assert held.opened(_Closable("192.0.2.1"), loop)
    assert (other.ended, idle.ended, busy.ended) == (False, True, False)


def test_loopback_is_limited_by_the_whole_only(loop: Any) -> None:
    held = Connections(ConnectionLimits(max_connections=8))
    clients = [_Closable(address_key("127.0.0.1")) for _ in range(8)]
    assert all(held.opened(client, loop) for client in clients)
    assert len(held) == 8


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("127.0.0.1", None),
        ("::1", None),
        ("::ffff:127.0.0.1", None),
        (None, None),
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_which_addresses_are_one_client(host: str | None, key: str | None) -> None:
    assert address_key(host) == key


def test_the_limit_is_below_that_of_open_files() -> None:
    assert default_max_connections() < resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_only_two_modules_run_uvicorn() -> None:
    """Every other server runs through these, and so has the limits. SkyRL's runs in another environment."""
    source = Path(connections.__file__).parents[1]
    lines = {path: path.read_text().splitlines() for path in source.rglob("*.py")}
    users = {str(path.relative_to(source)) for path, text in lines.items() if "import uvicorn" in text}
    inside = "training/engines/skyrl/inside/hermes_skyrl/api.py"
    assert users == {"http/server.py", "gateway/server.py", inside}


def test_the_api_answers_while_more_slow_clients_connect_than_it_has_files(tmp_path: Path) -> None:
    with limited_api(tmp_path, files=256) as port, SlowClients(port) as clients:
        clients.open(heads=400, bodies=100)
        seconds = sorted(clients.health_seconds(for_seconds=2.0))
    # All are answered; benchmarks/slow_clients.py measures how fast on a machine that does nothing else.
    assert seconds[len(seconds) // 2] < 1.0
    assert seconds[-1] < WAIT_S
    assert "closed for new connections" in (tmp_path / "log").read_text()
