"""The forward proxy through which Chromium reaches the network, on loopback in this process.

Always true: every connection, also of redirects, subresources, web sockets and service workers, goes to an address that
the network policy has just checked. Intercepting requests in the browser would miss some of these, and could not see
the address that a name resolves to.
"""

import asyncio
import os
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self
from urllib.parse import urlsplit

from hermes_rl.tools.network_policy import NetworkPolicy
from hermes_rl.tools.tool import ToolUseError

MAX_HEAD = 64 * 1024
# Chromium opens connections to a proxy before it needs them.
IDLE_TIMEOUT = 300.0
CONNECT_TIMEOUT = 10.0
MAX_PROBLEMS = 1000
HOP_BY_HOP = (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization")

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class FilteringProxy:
    def __init__(self, policy: NetworkPolicy) -> None:
        self.policy = policy
        self.url = ""
        self._problems: dict[str, str] = {}
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=MAX_HEAD)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def problem(self, host: str) -> str | None:
        """Why the last connection to this host failed; None when it did not. Chromium itself only reports that."""
        return self._problems.get(host)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 (asyncio runs this as a task)
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            # A broken connection concerns only this one request, which Chromium reports.
            with suppress(OSError, EOFError, ValueError, IndexError):
                await self._serve(reader, writer)
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(IDLE_TIMEOUT):
            head = await _read_head(reader)
        first, *headers = head.split(b"\r\n")
        method, target, _ = first.decode("latin-1").split(" ", 2)
        # Both forms as a URL: `CONNECT host:port`, for TLS and web sockets, and `GET http://host/path`.
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        if parts.hostname is None or (method != "CONNECT" and parts.scheme != "http"):
            return
        upstream = await self._connect(parts.hostname, parts.port or 80)
        if upstream is None:
            # Without an answer Chromium reports an error, and a page sees no content from that host.
            return
        try:
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await _until_first_ends(_copy(reader, upstream[1]), _copy(upstream[0], writer))
            else:
                path = target[len(f"{parts.scheme}://{parts.netloc}") :] or "/"
                await _forward(f"{method} {path} HTTP/1.1", headers, (reader, writer), upstream)
        finally:
            upstream[1].close()

    async def _connect(self, host: str, port: int) -> Streams | None:
        """A connection to one of the addresses that the policy allows; None, with the problem noted, without one."""
        problem = "it has no address"
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                addresses = await self.policy.resolve(host, port)
        except (ToolUseError, OSError) as error:
            addresses, problem = [], str(error) or "its name could not be resolved in time"
        for address in addresses:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    streams = await asyncio.open_connection(address, port, limit=MAX_HEAD)
            except OSError as error:
                problem = os.strerror(error.errno) if error.errno else "it did not answer"
            else:
                self._problems.pop(host, None)
                return streams
        if len(self._problems) >= MAX_PROBLEMS:
            self._problems.clear()
        self._problems[host] = problem
        return None


async def _forward(request_line: str, headers: list[bytes], client: Streams, upstream: Streams) -> None:
    """Send one plain HTTP request and its response. Each has its own connection, so none can be taken for another."""
    length = _content_length(headers)
    upstream[1].write(b"\r\n".join([request_line.encode("latin-1"), *_end_to_end(headers)]))

    async def send() -> None:
        left = length
        while left and (data := await client[0].read(min(left, MAX_HEAD))):
            left -= len(data)
            upstream[1].write(data)
            await upstream[1].drain()
        # Until Chromium closes the connection, because it has the response or no longer wants it.
        while await client[0].read(MAX_HEAD):
            pass

    async def receive() -> None:
        interim = True
        while interim:
            status_line, *fields = (await _read_head(upstream[0])).split(b"\r\n")
            interim = status_line.split(b" ")[1].startswith(b"1")
            client[1].write(b"\r\n".join([status_line, *_end_to_end(fields)]))
        await _copy(upstream[0], client[1])

    await _until_first_ends(send(), receive())


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    """The first line and the headers, without the empty line that ends them."""
    try:
        return (await reader.readuntil(b"\r\n\r\n"))[:-4]
    except asyncio.LimitOverrunError:
        raise ValueError("the headers are too long") from None


def _end_to_end(headers: list[bytes]) -> list[bytes]:
    """The headers to pass on, with the end of the head; the connection is not used again."""
    kept = [line for line in headers if line.partition(b":")[0].strip().lower() not in HOP_BY_HOP]
    return [*kept, b"Connection: close", b"", b""]


def _content_length(headers: list[bytes]) -> int:
    """The length of a request's body; ValueError for one without a length, which no browser sends over HTTP/1.1."""
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in headers)}
    if b"transfer-encoding" in fields:
        raise ValueError("a request body without a length")
    return int(fields.get(b"content-length", b"0"))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(MAX_HEAD):
        writer.write(data)
        await writer.drain()


async def _until_first_ends(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run all until one ends, then cancel the others; raises its error."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
