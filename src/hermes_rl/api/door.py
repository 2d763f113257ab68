"""The door: who may come in, and how much they may bring.

Always true: what a request holds in memory was reserved before it was read, so all bodies together stay below one
limit; a server without a token is of no use to a page in somebody's browser.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

from fastapi import Request
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes_rl.api.problems import RefusedError, answer
from hermes_rl.api.settings import ApiSettings
from hermes_rl.api.wire import Problem

# Routes that say nothing of the data, for whoever watches over the process.
OPEN = frozenset({"/health", "/ready"})
# All bodies but groups are small.
SMALL = 2**20


class Guard(Protocol):
    """`hosts` are the names under which a server without a token may be called; None for any."""

    @property
    def token(self) -> str | None: ...

    @property
    def hosts(self) -> frozenset[str] | None: ...


class Door:
    """ASGI middleware that lets in whom the guard allows; `refuse` writes the answer to all others."""

    def __init__(
        self,
        app: ASGIApp,
        guard: Guard,
        refuse: Callable[[int, Problem, Mapping[str, str] | None], ASGIApp] = answer,
        always_open: frozenset[str] = OPEN,
    ) -> None:
        self._app = app
        self._guard = guard
        self._refuse = refuse
        self._always_open = always_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        inside = scope["path"] in self._always_open
        refusal = None if inside else refused(Headers(scope=scope), self._guard)
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            status, problem = refusal
            headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
            await self._refuse(status, problem, headers)(scope, receive, send)


def refused(headers: Headers, guard: Guard) -> tuple[int, Problem] | None:
    """Why a request may not come in; None when it may."""
    if guard.token is not None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), guard.token.encode()):
            return 401, Problem(kind="unauthorised", message="send the API's token as `Authorization: Bearer TOKEN`")
        return None
    if headers.get("sec-fetch-site", "none") not in {"none", "same-origin"} or "origin" in headers:
        return 403, Problem(kind="forbidden", message="an API without a token answers no page of another site")
    if guard.hosts is not None and _host(headers.get("host", "")) not in guard.hosts:
        names = ", ".join(sorted(guard.hosts))
        return 403, Problem(kind="forbidden", message=f"call it by one of {names}, or give it a token")
    return None


def _host(value: str) -> str:
    """The name without the port; an IPv6 address keeps its brackets."""
    name = value[: value.find("]") + 1] if value.startswith("[") else value.partition(":")[0]
    return name.lower()


class SmallBodies:
    """ASGI middleware for the routes that read whole bodies themselves: what is too large for them is cut off.

    Routes that take groups read them through `Bodies`, which has limits of its own.
    """

    def __init__(self, app: ASGIApp, large: frozenset[str], most: int = SMALL) -> None:
        self._app = app
        self._large = large
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].rpartition("/")[2] in self._large:
            await self._app(scope, receive, send)
            return
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._most:
                raise HTTPException(413, f"a body of this route has {self._most} bytes at most")
            return message

        await self._app(scope, counted, send)


class Bodies:
    """Large bodies, read whole within a limit for each and one for all of them together."""

    def __init__(self, settings: ApiSettings) -> None:
        self._settings = settings
        self._free = settings.max_bodies
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """The body; its memory counts as taken until the end."""
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
        """Hold so much of the memory that all requests share; waits while others have it."""
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
            raise RefusedError(411, "no_length", "say the body's size in Content-Length")
        size, most = int(text), self._settings.max_body
        if size > most:
            raise RefusedError(413, "too_large", f"the body has {size} bytes; this API takes {most} at most")
        return size
