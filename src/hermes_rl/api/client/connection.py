"""One HTTP connection to a trajectory API: requests with a deadline, asked again while the API is away.

Always true: a request that raised may have been carried out all the same, so what is asked here can be asked twice;
the token goes to the one address and into no message.
"""

import asyncio
import io
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

import aiohttp
from pydantic import BaseModel, ValidationError

from hermes_rl import jsontext, tracing
from hermes_rl.api.client.backoff import Backoff
from hermes_rl.api.wire import Problem
from hermes_rl.errors import ConfigError, HermesRLError
from hermes_rl.secrets import without
from hermes_rl.waiting import seconds_asked_for

DEADLINE = 30.0
PATIENCE = 60.0
CONNECT_TIME = 10.0
# Servers close a line that is idle for five seconds, which must not happen under a request.
IDLE_TIME = 3.0
# What a server or a proxy before it answers while it cannot, but will.
NOT_NOW = frozenset({408, 429, 502, 503, 504, 507})
SHOWN = 500
Model = TypeVar("Model", bound=BaseModel)


class ApiError(HermesRLError):
    """The API refused. `status` is HTTP's (0: no answer), `kind` a word to act by, `field` what is to blame."""

    def __init__(self, message: str, *, status: int = 0, kind: str = "", field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.field = field


class ApiUnavailableError(ApiError):
    """The API cannot be reached or has no room now. `retry_after` is the wait it asked for, in seconds."""

    retry_after: float | None = None


class Content(NamedTuple):
    """A body as it travels."""

    data: bytes
    type: str
    encoding: str | None = None


class Connection:
    """The way to one API, for as long as the `async with`."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.netloc:
            raise ConfigError(f"the address of the API must be like http://127.0.0.1:8000, got {url!r}")
        self.url = url.rstrip("/")
        self._token = token
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # A compressed answer would cost both ends more time than the way takes.
        headers = {"Accept-Encoding": "identity"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_TIME),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def ask(
        self,
        method: str,
        path: str,
        answer: type[Model],
        body: BaseModel | Content | None = None,
        *,
        deadline: float = DEADLINE,
        patience: float = 0.0,
    ) -> Model:
        """The answer to a request, read."""
        return self.read(answer, await self.request(method, path, body, deadline=deadline, patience=patience))

    def read(self, answer: type[Model], data: bytes) -> Model:
        try:
            return answer.model_validate_json(data)
        except ValidationError as error:
            raise ApiError(
                self._about(f"answered with no {answer.__name__}: {error.errors()[0]['msg']}: {_shown(data)}"),
                kind="bad_answer",
            ) from None

    async def request(
        self,
        method: str,
        path: str,
        body: BaseModel | Mapping[str, Any] | Content | None = None,
        *,
        deadline: float = DEADLINE,
        patience: float = 0.0,
    ) -> bytes:
        """The bytes of the answer. Asked again for `patience` seconds while there is none; each try has `deadline`."""
        content = body if isinstance(body, Content) else _json(body)
        timeout = aiohttp.ClientTimeout(total=deadline, sock_connect=CONNECT_TIME)
        backoff, end = Backoff(), time.monotonic() + patience
        while True:
            try:
                async with self._answer(method, path, content, timeout) as response:
                    return await response.read()
            except ApiUnavailableError as error:
                left = end - time.monotonic()
                asked = error.retry_after or 0.0
                if left <= 0 or asked > left:
                    raise
                await asyncio.sleep(max(min(backoff.next(), left), asked))

    @asynccontextmanager
    async def stream(self, path: str, *, deadline: float = DEADLINE) -> AsyncIterator[aiohttp.StreamReader]:
        """The answer to a GET as it comes, with no more than `deadline` between its pieces; asked once."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIME, sock_read=deadline)
        async with self._answer("GET", path, None, timeout) as response:
            yield response.content

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, content: Content | None, timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            raise RuntimeError("the connection is not open; use it inside `async with`")
        try:
            async with self._session.request(
                method,
                self.url + path,
                # aiohttp writes bytes in one go, which holds the loop.
                data=None if content is None else io.BytesIO(content.data),
                headers={**_headers(content), **tracing.headers()},
                allow_redirects=False,
                timeout=timeout,
            ) as response:
                if response.status >= 300:
                    raise self._refusal(response, await response.read())
                yield response
        except TimeoutError:
            raise self._away(f"did not answer {method} {path} in time") from None
        except (aiohttp.ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise self._away(f"cannot be reached or broke off ({method} {path}): {reason}") from error

    def _refusal(self, response: aiohttp.ClientResponse, data: bytes) -> ApiError:
        status = response.status
        try:
            problem = Problem.model_validate_json(data)
        except ValidationError:
            place = f" (to {response.headers.get('Location')})" if status < 400 else ""
            problem = Problem(kind=f"http_{status}", message=f"HTTP {status}{place}: {_shown(data)}")
        kind = ApiUnavailableError if status in NOT_NOW else ApiError
        what = f"refused: {problem.message}" + (f" (field {problem.field})" if problem.field else "")
        error = kind(self._about(what), status=status, kind=problem.kind, field=problem.field)
        if isinstance(error, ApiUnavailableError):
            error.retry_after = seconds_asked_for(response.headers.get("Retry-After", ""), datetime.now(UTC))
        return error

    def _away(self, what: str) -> ApiUnavailableError:
        return ApiUnavailableError(self._about(what), kind="unreachable")

    def _about(self, what: str) -> str:
        return without(f"{self.url} {what}", [self._token or ""])


def _json(body: BaseModel | Mapping[str, Any] | None) -> Content | None:
    if body is None:
        return None
    data = body.model_dump_json().encode() if isinstance(body, BaseModel) else jsontext.dumps(body)
    return Content(data, "application/json")


def _headers(content: Content | None) -> dict[str, str]:
    if content is None:
        return {}
    encoding = {} if content.encoding is None else {"Content-Encoding": content.encoding}
    return {"Content-Type": content.type, "Content-Length": str(len(content.data)), **encoding}


def _shown(data: bytes) -> str:
    return data[:SHOWN].decode(errors="replace")
