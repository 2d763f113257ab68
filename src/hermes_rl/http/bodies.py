"""Limits on request bodies. Always true: memory for a large body is reserved before it is read."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes_rl.http.errors import RefusedError

# Enough for every body except groups.
SMALL = 2**20


class BodyLimits(Protocol):
    """Maximum bytes of one body and of all bodies at once, and the seconds a body may take to arrive."""

    @property
    def max_body(self) -> int: ...

    @property
    def max_bodies(self) -> int: ...

    @property
    def body_seconds(self) -> float: ...


class BodyLimit:
    """ASGI middleware that refuses large bodies, except on the `large` routes, which use `BodyReader`."""

    def __init__(self, app: ASGIApp, large: frozenset[str], max_bytes: int = SMALL) -> None:
        self._app = app
        self._large = large
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].rpartition("/")[2] in self._large:
            await self._app(scope, receive, send)
            return
        received = 0

        async def counting_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise HTTPException(413, f"the body exceeds the limit of {self._max_bytes} bytes for this route")
            return message

        await self._app(scope, counting_receive, send)


class BodyReader:
    """Reads large bodies whole, within a limit per body and one for all bodies in memory."""

    def __init__(self, settings: BodyLimits) -> None:
        self._settings = settings
        self._free = settings.max_bodies
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """The body; its memory stays reserved until the end of the block."""
        async with self.reserved(self._announced(request)):
            try:
                async with asyncio.timeout(self._settings.body_seconds):
                    # The server ends a body at its announced size.
                    data = b"".join([chunk async for chunk in request.stream()])
            except TimeoutError:
                seconds = self._settings.body_seconds
                raise RefusedError(
                    408, "too_slow", f"the body did not arrive within {seconds:g} s", later=True
                ) from None
            yield data

    @asynccontextmanager
    async def reserved(self, size: int) -> AsyncIterator[None]:
        """Reserve part of the memory that all requests share; waits until it is free."""
        size = min(size, self._settings.max_bodies)
        async with self._freed:
            await self._freed.wait_for(lambda: self._free >= size)
            self._free -= size
        try:
            yield
        finally:
            async with self._freed:
                self._free += size
                self._freed.notify_all()

    def _announced(self, request: Request) -> int:
        text = request.headers.get("content-length", "")
        if not text.isdecimal():
            raise RefusedError(411, "no_length", "send the body's size in Content-Length")
        size, limit = int(text), self._settings.max_body
        if size > limit:
            raise RefusedError(413, "too_large", f"the body has {size} bytes; the limit is {limit}")
        return size
