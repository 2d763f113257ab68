"""One OpenAI-compatible endpoint: pooled connections, limits on requests in flight, and errors that name it.

Every failed request raises an EndpointError with a stable cause; a RetryableEndpointError may succeed when repeated.
"""

import asyncio
import io
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import aiohttp
from yarl import URL

from hermes_rl import tracing
from hermes_rl.core import fast_json
from hermes_rl.core.backoff import parse_retry_after
from hermes_rl.core.deadline import Deadline
from hermes_rl.core.errors import ContextFullError, EndpointError
from hermes_rl.core.secrets import HIDDEN
from hermes_rl.inference.admission import EngineGoneError, Gate
from hermes_rl.inference.concurrency_limiter import AIMDLimiter, LimiterConfig
from hermes_rl.inference.config import APIServerConfig, ServerType

BODY_EXCERPT = 500
CONNECT_TIMEOUT = 10.0
LARGE_BODY = 2**20
# Tens of megabytes hold the logprobs of a long completion.
MAX_RESPONSE_BYTES = 256 * 2**20
# Status codes by which an engine says that it has no room for a request, or not yet (with Retry-After).
NO_ROOM, NOT_NOW = "http_429", "http_503"
# How vLLM, llama.cpp, SGLang and the hosted APIs word that a conversation is too long; there is no common code.
CONTEXT_FULL = re.compile(
    r"context[ _](length|size|window)|maximum (context|model) len|prompt is too long|too many tokens"
    r"|longer than the (model|maximum model)|max_tokens must be at least 1, got",
    re.IGNORECASE,
)


class Endpoint:
    """With a `limiter_config`, the limit on requests in flight adapts to the engine, up to the configured maximum."""

    def __init__(
        self, config: APIServerConfig, session: aiohttp.ClientSession, limiter_config: LimiterConfig | None = None
    ) -> None:
        if config.base_url is None:
            raise ValueError("an endpoint needs a base_url")
        self.config = config
        self.base_url = config.base_url.rstrip("/")
        self.root = self.base_url.removesuffix("/v1")
        self.in_flight = 0
        """Includes requests that wait in the gate."""
        self.gate: Gate | None = None
        if limiter_config:
            self.gate = Gate(AIMDLimiter(replace(limiter_config, maximum=config.num_max_requests_at_once)))
        self.answers = {"train": 0, "eval": 0}
        """Counted only with a gate."""
        self.latencies: dict[str, deque[float]] = {
            split: deque(maxlen=config.rolling_buffer_length) for split in self.answers
        }
        """Seconds of the latest answered requests, without the wait for a slot or a gate."""
        self.missing_routes = 0
        """Number of the engine's token routes, in order of preference, that this server lacks."""
        self.context_tokens: int | None = None
        self.answered = False
        """Whether it has ever answered anything."""
        self._session = session
        self._headers = {"Content-Type": "application/json"}
        self._key = config.resolved_key()
        if self._key is not None:
            self._headers["Authorization"] = f"Bearer {self._key}"
        # Only for our own servers: a hosted API has no use for our span ids.
        self._joins_traces = config.server_type is not ServerType.OPENAI
        self._urls: dict[str, URL] = {}
        self._slots = {
            "train": asyncio.Semaphore(config.num_max_requests_at_once),
            "eval": asyncio.Semaphore(config.num_requests_for_eval),
        }

    async def post(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        split: str,
        timeout: float,
        at_root: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Send one request and decode the answer, within `timeout` seconds including the wait for a slot.

        With `at_root` the path is relative to the server's root instead of the API's.
        """
        self.in_flight += 1
        deadline = Deadline()
        deadline.begin(timeout)
        try:
            async with self._slots[split]:
                address = (self.root if at_root else self.base_url) + path
                send = partial(self._timed, address, body, split, headers)
                if self.gate is None:
                    return await send()
                answer = await self._post_through_gate(self.gate, send, deadline, timeout)
                self.answers[split] += 1
                return answer
        except asyncio.CancelledError:
            try:
                deadline.reraise()
            except TimeoutError:
                raise self._error("timeout", f"did not answer {path} within {timeout:.3g} s", retryable=False) from None
        finally:
            deadline.close()
            self.in_flight -= 1

    @property
    def limit(self) -> int | None:
        """Maximum requests in flight that the engine handles; None when it is not measured."""
        return None if self.gate is None else self.gate.limiter.limit

    @property
    def has_room(self) -> bool:
        """Whether a request would be sent without waiting."""
        return self.gate is None or self.in_flight < self.gate.limiter.limit

    async def _post_through_gate(
        self, gate: Gate, send: Callable[[], Awaitable[Any]], deadline: Deadline, timeout: float
    ) -> Any:
        """Send a request when the gate admits it, and report the outcome to the gate."""
        try:
            await gate.enter()
        except EngineGoneError:
            raise self._error(NO_ROOM, "failed or was removed while a request waited for it") from None
        report, entered = gate.abandoned, time.monotonic()
        try:
            answer = await send()
            report = partial(gate.answered, completion_tokens(answer))
            return answer
        except RetryableEndpointError as error:
            report = gate.refused if error.no_room else gate.lost
            raise
        except asyncio.CancelledError:
            # A request that spent its time waiting here says nothing about the engine.
            if deadline.expired and time.monotonic() - entered > timeout / 2:
                report = gate.lost
            raise
        finally:
            report()

    async def _timed(self, address: str, body: Mapping[str, Any], split: str, headers: Mapping[str, str] | None) -> Any:
        began = time.monotonic()
        answer = self._decode(await self._send("POST", address, body, headers))
        self.latencies[split].append(time.monotonic() - began)
        return answer

    async def get(self, path: str, *, timeout: float) -> Any:
        """Send a GET below the API's root and decode the answer; used to check that the endpoint is up."""
        return self._decode(await self._request_within(timeout, "GET", path, None))

    async def ask(self, path: str, body: Mapping[str, Any], *, timeout: float) -> Any:
        """Send a POST and decode the answer; it does not count against requests in flight."""
        return self._decode(await self._request_within(timeout, "POST", path, body))

    async def command(self, path: str, body: Mapping[str, Any], *, timeout: float) -> None:
        """Send a command that has no answer but success; it does not count against requests in flight."""
        await self._request_within(timeout, "POST", path, body)

    async def _request_within(self, timeout: float, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        try:
            async with asyncio.timeout(timeout):
                return await self._send(method, self.base_url + path, body)
        except TimeoutError:
            raise self._error("timeout", f"did not answer {path} within {timeout:.3g} s", retryable=True) from None

    async def _send(
        self, method: str, address: str, body: Mapping[str, Any] | None, more: Mapping[str, str] | None = None
    ) -> bytes:
        data: bytes | io.BytesIO | None = None if body is None else fast_json.dumps(body)
        if isinstance(data, bytes) and len(data) >= LARGE_BODY:
            # aiohttp writes bytes in one go, which blocks the event loop, and warns about it.
            data = io.BytesIO(data)
        try:
            url = self._urls.get(address) or self._urls.setdefault(address, URL(address))
            headers = {**self._headers, **tracing.headers()} if self._joins_traces else self._headers
            if more:
                headers = {**headers, **more}
            async with self._session.request(method, url, data=data, headers=headers) as response:
                self.answered = True
                raw = await self._read(response)
        except aiohttp.ClientPayloadError as error:
            raise self._error("bad_response", f"broke off its answer: {error}") from error
        except aiohttp.ClientResponseError as error:
            raise self._error("bad_response", f"does not answer in HTTP: {error.message}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._error("connection", f"cannot be reached: {str(error) or type(error).__name__}") from error
        if response.status != 200:
            raise self._status_error(response.status, raw, response.headers.get("Retry-After"))
        return raw

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """The body, decompressed."""
        size = response.content_length
        if "Content-Encoding" not in response.headers and size is not None and size <= MAX_RESPONSE_BYTES:
            return await response.read()
        pieces, left = [], MAX_RESPONSE_BYTES
        async for piece in response.content.iter_any():
            pieces.append(piece)
            left -= len(piece)
            if left < 0:
                what = f"sent more than {MAX_RESPONSE_BYTES} bytes, decompressed"
                raise self._error("bad_response", what, retryable=False)
        return b"".join(pieces)

    def _decode(self, raw: bytes) -> Any:
        try:
            return fast_json.loads(raw)
        except ValueError as error:
            raise self._error("bad_response", f"answered with broken JSON ({error}): {_excerpt(raw)}") from None

    def _status_error(
        self, status: int, raw: bytes, retry_after: str | None
    ) -> "RetryableEndpointError | EndpointError":
        if status in (400, 413) and CONTEXT_FULL.search(raw[:BODY_EXCERPT].decode(errors="replace")):
            return ContextFullError("context_full", self.redact(f"{self.base_url} answered: {_excerpt(raw)}"))
        retryable = status == 429 or status >= 500
        error = self._error(f"http_{status}", f"answered HTTP {status}: {_excerpt(raw)}", retryable=retryable)
        if isinstance(error, RetryableEndpointError) and retry_after:
            error.retry_after = parse_retry_after(retry_after, datetime.now(UTC))
        return error

    def _error(self, cause: str, what: str, *, retryable: bool = True) -> "RetryableEndpointError | EndpointError":
        kind = RetryableEndpointError if retryable else EndpointError
        return kind(cause, self.redact(f"{self.base_url} (model {self.config.model_name}) {what}"))

    def redact(self, text: str) -> str:
        """Remove the API key from text: some endpoints echo the key they were sent."""
        return text.replace(self._key, HIDDEN) if self._key else text


class RetryableEndpointError(EndpointError):
    """Repeating the request, here or elsewhere, may succeed. `retry_after` is the requested wait in seconds."""

    retry_after: float | None = None

    @property
    def no_room(self) -> bool:
        """Whether the engine is only overloaded or not ready yet."""
        return self.cause == NO_ROOM or (self.cause == NOT_NOW and self.retry_after is not None)


def completion_tokens(answer: Any) -> float:
    """Completion tokens in an answer, as vLLM, the hosted APIs or SGLang report them; 1 if none are reported."""
    tokens = 0
    for part in answer if isinstance(answer, list) else (answer,):
        usage = part.get("usage") or part.get("meta_info") if isinstance(part, Mapping) else None
        count = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
        tokens += count if isinstance(count, int) and count > 0 else 0
    return float(tokens or 1)


def _excerpt(raw: bytes) -> str:
    text = raw[:BODY_EXCERPT].decode(errors="replace").strip()
    return (text or "(empty body)") + ("…" if len(raw) > BODY_EXCERPT else "")
