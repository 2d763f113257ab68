"""The proxy of the browser, spoken to over a socket; its targets are servers of the test on loopback."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from hermes_rl.tools.browser.proxy import FilteringProxy
from hermes_rl.tools.network_policy import NetworkPolicy


@dataclass
class Target:
    """Answers each connection once and keeps what it was sent."""

    port: int = 0
    heard: list[bytes] = field(default_factory=list)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(5) if b"Content-Length: 5" in head else b""
        self.heard.append(head + body)
        # It offers to go on, which the proxy must not.
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nhi")
        await writer.drain()
        if b"close" in head:
            writer.close()
        else:
            await reader.read()
            writer.close()


@pytest.fixture
async def target() -> AsyncIterator[Target]:
    target = Target()
    server = await asyncio.start_server(target.answer, "127.0.0.1", 0)
    target.port = server.sockets[0].getsockname()[1]
    try:
        yield target
    finally:
        server.close()


@asynccontextmanager
async def proxied(policy: NetworkPolicy) -> AsyncIterator[FilteringProxy]:
    async with asyncio.timeout(60), FilteringProxy(policy) as proxy:
        yield proxy


async def sent(proxy: FilteringProxy, request: str) -> bytes:
    """All that comes back for this request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.url.rpartition(":")[2]))
    writer.write(request.encode())
    try:
        return await reader.read()
    finally:
        writer.close()


def lookup_of(*answers: str) -> NetworkPolicy:
    left = list(answers)

    async def lookup(host: str, port: int) -> Sequence[str]:
        return [left.pop(0)]

    return NetworkPolicy(networks=NetworkPolicy.from_settings(["127.0.0.1"]).networks, lookup=lookup)


async def test_a_request_is_passed_on_in_the_form_of_a_server(target: Target) -> None:
    async with proxied(NetworkPolicy.from_settings(["127.0.0.1"])) as proxy:
        request = f"POST http://127.0.0.1:{target.port}/a?b=%20c HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
        answer = await sent(proxy, f"{request}Proxy-Connection: keep-alive\r\n\r\nhello and more")
    assert answer == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
    expected = b"POST /a?b=%20c HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
    assert target.heard == [expected]


async def test_a_tunnel_carries_both_directions(target: Target) -> None:
    async with proxied(NetworkPolicy.from_settings(["127.0.0.1"])) as proxy:
        tunnel = f"CONNECT 127.0.0.1:{target.port} HTTP/1.1\r\n\r\n"
        answer = await sent(proxy, f"{tunnel}GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.1", "2130706433", "0", "[::ffff:127.0.0.1]"])
@pytest.mark.parametrize("form", ["GET http://{}:{}/ HTTP/1.1", "CONNECT {}:{} HTTP/1.1"])
async def test_loopback_is_not_reached_by_default(target: Target, host: str, form: str) -> None:
    async with proxied(NetworkPolicy()) as proxy:
        assert await sent(proxy, form.format(host, target.port) + "\r\nHost: x\r\n\r\n") == b""
        assert proxy.problem(host.strip("[]"))
    assert target.heard == []


async def test_a_name_that_changes_its_address_is_checked_at_each_connection(target: Target) -> None:
    """The second answer would lead to loopback under another address, which is not allowed."""
    async with proxied(lookup_of("127.0.0.1", "127.0.0.2")) as proxy:
        request = f"GET http://rebinding.example:{target.port}/ HTTP/1.1\r\nHost: x\r\n\r\n"
        assert (await sent(proxy, request)).startswith(b"HTTP/1.1 200")
        assert proxy.problem("rebinding.example") is None
        assert await sent(proxy, request) == b""
        assert "is in a private network" in str(proxy.problem("rebinding.example"))
    assert len(target.heard) == 1


@pytest.mark.parametrize(
    "request_text",
    [
        "GET / HTTP/1.1",
        "GET ftp://127.0.0.1/ HTTP/1.1",
        "nonsense",
        "CONNECT 127.0.0.1:x HTTP/1.1",
        "GET http://[ HTTP/1.1",
    ],
)
async def test_a_malformed_request_gets_no_answer(request_text: str) -> None:
    async with proxied(NetworkPolicy.from_settings(True)) as proxy:
        assert await sent(proxy, f"{request_text}\r\n\r\n") == b""


async def test_a_server_that_is_not_there_is_named_with_the_reason() -> None:
    async with proxied(NetworkPolicy.from_settings(True)) as proxy:
        assert await sent(proxy, "GET http://127.0.0.1:1/ HTTP/1.1\r\n\r\n") == b""
        assert "refused" in str(proxy.problem("127.0.0.1"))


async def test_closing_the_proxy_ends_its_open_tunnels(target: Target) -> None:
    async with proxied(NetworkPolicy.from_settings(True)) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.url.rpartition(":")[2]))
        writer.write(f"CONNECT 127.0.0.1:{target.port} HTTP/1.1\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
    async with asyncio.timeout(10):
        assert await reader.read() == b""
    writer.close()
