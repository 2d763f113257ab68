"""The HTTP connection to a trajectory API: requests with a deadline, retried while the API is unavailable.

A request that raised may still have been executed, so every request must be idempotent. The token is sent only to this
address and never appears in a message.
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

from hermes_rl import tracing
from hermes_rl.core import fast_json
from hermes_rl.core.backoff import Backoff, parse_retry_after
from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.secrets import redact
from hermes_rl.http.errors import Problem

DEADLINE = 30.0
PATIENCE = 60.0
CONNECT_TIME = 10.0
# Servers close a connection that is idle for five seconds, which must not happen during a request.
IDLE_TIME = 3.0
# Temporary failures of the server or a proxy.
RETRYABLE = frozenset({408, 429, 502, 503, 504, 507})
SHOWN = 500
Model = TypeVar("Model", bound=BaseModel)


class ApiError(HermesRLError):
    """The API refused a request. `status` is the HTTP status (0: no response), `kind` the error code."""

    def __init__(self, message: str, *, status: int = 0, kind: str = "", field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.field = field


class ApiUnavailableError(ApiError):
    """The API is unreachable or overloaded. `retry_after` is the wait it requested, in seconds."""

    retry_after: float | None = None


class RequestContent(NamedTuple):
    data: bytes
    type: str
    encoding: str | None = None


class ApiConnection:
    """Use inside `async with`."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.netloc:
            raise ConfigError(f"the API's address must look like http://127.0.0.1:8000, got {url!r}")
        self.url = url.rstrip("/")
        self._token = token
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # Compressing a response takes longer than sending it.
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
        body: BaseModel | RequestContent | None = None,
        *,
        deadline: float = DEADLINE,
        patience: float = 0.0,
    ) -> Model:
        """Send a request and parse the response."""
        return self.read(answer, await self.request(method, path, body, deadline=deadline, patience=patience))

    def read(self, answer: type[Model], data: bytes) -> Model:
        try:
            return answer.model_validate_json(data)
        except ValidationError as error:
            raise ApiError(
                self._message(f"sent an invalid {answer.__name__}: {error.errors()[0]['msg']}: {_excerpt(data)}"),
                kind="bad_answer",
            ) from None

    async def request(
        self,
        method: str,
        path: str,
        body: BaseModel | Mapping[str, Any] | RequestContent | None = None,
        *,
        deadline: float = DEADLINE,
        patience: float = 0.0,
    ) -> bytes:
        """The body of the response. Retries for `patience` seconds; each attempt has `deadline` seconds."""
        content = body if isinstance(body, RequestContent) else _json(body)
        timeout = aiohttp.ClientTimeout(total=deadline, sock_connect=CONNECT_TIME)
        backoff, end = Backoff(), time.monotonic() + patience
        while True:
            try:
                async with self._answer(method, path, content, timeout) as response:
                    return await response.read()
            except ApiUnavailableError as error:
                left = end - time.monotonic()
                requested = error.retry_after or 0.0
                if left <= 0 or requested > left:
                    raise
                await asyncio.sleep(max(min(backoff.next(), left), requested))

    @asynccontextmanager
    async def stream(self, path: str, *, deadline: float = DEADLINE) -> AsyncIterator[aiohttp.StreamReader]:
        """Stream the response to a GET, with up to `deadline` seconds between chunks; no retry."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIME, sock_read=deadline)
        async with self._answer("GET", path, None, timeout) as response:
            yield response.content

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, content: RequestContent | None, timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            raise RuntimeError("the connection is not open; use it inside `async with`")
        try:
            async with self._session.request(
                method,
                self.url + path,
                # aiohttp writes bytes at once, which blocks the loop.
                data=None if content is None else io.BytesIO(content.data),
                headers={**_headers(content), **tracing.headers()},
                allow_redirects=False,
                timeout=timeout,
            ) as response:
                if response.status >= 300:
                    raise self._refusal(response, await response.read())
                yield response
        except TimeoutError:
            raise self._unavailable(f"did not answer {method} {path} in time") from None
        except (aiohttp.ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise self._unavailable(f"cannot be reached or broke off ({method} {path}): {reason}") from error

    def _refusal(self, response: aiohttp.ClientResponse, data: bytes) -> ApiError:
        status = response.status
        try:
            problem = Problem.model_validate_json(data)
        except ValidationError:
            target = f" (to {response.headers.get('Location')})" if status < 400 else ""
            problem = Problem(kind=f"http_{status}", message=f"HTTP {status}{target}: {_excerpt(data)}")
        kind = ApiUnavailableError if status in RETRYABLE else ApiError
        what = f"refused: {problem.message}" + (f" (field {problem.field})" if problem.field else "")
        error = kind(self._message(what), status=status, kind=problem.kind, field=problem.field)
        if isinstance(error, ApiUnavailableError):
            error.retry_after = parse_retry_after(response.headers.get("Retry-After", ""), datetime.now(UTC))
        return error

    def _unavailable(self, what: str) -> ApiUnavailableError:
        return ApiUnavailableError(self._message(what), kind="unreachable")

    def _message(self, what: str) -> str:
        return redact(f"{self.url} {what}", [self._token or ""])


def _json(body: BaseModel | Mapping[str, Any] | None) -> RequestContent | None:
    if body is None:
        return None
    data = body.model_dump_json().encode() if isinstance(body, BaseModel) else fast_json.dumps(body)
    return RequestContent(data, "application/json")


def _headers(content: RequestContent | None) -> dict[str, str]:
    if content is None:
        return {}
    encoding = {} if content.encoding is None else {"Content-Encoding": content.encoding}
    return {"Content-Type": content.type, "Content-Length": str(len(content.data)), **encoding}


def _excerpt(data: bytes) -> str:
    return data[:SHOWN].decode(errors="replace")
