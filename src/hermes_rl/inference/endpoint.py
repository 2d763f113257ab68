"""One OpenAI-compatible endpoint: a pooled connection, bounds on requests in flight, and errors that name it.

Every way a request can fail is an EndpointError whose cause is stable; `retryable` says whether asking again can help.
"""

import asyncio
import io
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import aiohttp
from yarl import URL

from hermes_rl import jsontext, tracing
from hermes_rl.deadline import Deadline
from hermes_rl.errors import ContextFullError, EndpointError
from hermes_rl.inference.config import APIServerConfig, ServerType
from hermes_rl.inference.gate import Gate, TurnedAwayError
from hermes_rl.inference.pressure import Law, Pressure
from hermes_rl.secrets import HIDDEN
from hermes_rl.waiting import seconds_asked_for

BODY_SHOWN = 500
CONNECT_TIMEOUT = 10.0
LARGE_BODY = 2**20
# How an engine says that it has no room for a request, and how it says that it will have, after a while.
NO_ROOM, NOT_NOW = "http_429", "http_503"
# How vLLM, llama.cpp, SGLang and the hosted APIs say that a conversation is too long; there is no agreed code.
CONTEXT_FULL = re.compile(
    r"context[ _](length|size|window)|maximum (context|model) len|prompt is too long|too many tokens"
    r"|longer than the (model|maximum model)|max_tokens must be at least 1, got",
    re.IGNORECASE,
)


class Endpoint:
    """With a `law` its requests in flight follow the engine, within the bounds of the configuration."""

    def __init__(self, config: APIServerConfig, session: aiohttp.ClientSession, law: Law | None = None) -> None:
        if config.base_url is None:
            raise ValueError("an endpoint needs a base_url")
        self.config = config
        self.base_url = config.base_url.rstrip("/")
        self.root = self.base_url.removesuffix("/v1")
        self.in_flight = 0
        """Those that wait here are among them."""
        self.gate = Gate(Pressure(replace(law, most=config.num_max_requests_at_once))) if law else None
        self.answers = {"train": 0, "eval": 0}
        """Where they are measured."""
        self.absent_routes = 0
        """How many of its engine's token routes it was found not to have, the best first."""
        self.context_tokens: int | None = None
        self._session = session
        self._headers = {"Content-Type": "application/json"}
        self._key = config.resolved_key()
        if self._key is not None:
            self._headers["Authorization"] = f"Bearer {self._key}"
        # A server of one's own; somebody else's API has no use for the numbers of our spans.
        self._joins_traces = config.server_type is not ServerType.OPENAI
        self._urls: dict[str, URL] = {}
        self._slots = {
            "train": asyncio.Semaphore(config.num_max_requests_at_once),
            "eval": asyncio.Semaphore(config.num_requests_for_eval),
        }

    async def post(
        self, path: str, body: Mapping[str, Any], *, split: str, timeout: float, at_root: bool = False
    ) -> Any:
        """The decoded answer to one request, in `timeout` seconds at most, waiting for a slot included.

        `at_root`: the path is the server's own, beside the API and not below it.
        """
        self.in_flight += 1
        deadline = Deadline()
        deadline.begin(timeout)
        try:
            async with self._slots[split]:
                address = (self.root if at_root else self.base_url) + path
                if self.gate is None:
                    return self._json(await self._exchange("POST", address, body))
                answer = await self._through(self.gate, address, body, deadline, timeout)
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
        """How many requests it bears at once; None where nobody measures it."""
        return None if self.gate is None else self.gate.pressure.limit

    @property
    def has_room(self) -> bool:
        """Whether a request would be sent at once."""
        return self.gate is None or self.in_flight < self.gate.pressure.limit

    async def _through(
        self, gate: Gate, address: str, body: Mapping[str, Any], deadline: Deadline, timeout: float
    ) -> Any:
        """The answer to a request that waits for its turn; what became of it is told to the gate."""
        try:
            await gate.enter()
        except TurnedAwayError:
            raise self._error(NO_ROOM, "failed or left while a request waited for it") from None
        tell, entered = gate.gone, time.monotonic()
        try:
            answer = self._json(await self._exchange("POST", address, body))
            tell = partial(gate.answered, work_in(answer))
            return answer
        except RetryableEndpointError as error:
            tell = gate.refused if error.no_room else gate.lost
            raise
        except asyncio.CancelledError:
            # One that spent its time in waiting here says nothing of the engine.
            if deadline.expired and time.monotonic() - entered > timeout / 2:
                tell = gate.lost
            raise
        finally:
            tell()

    async def get(self, path: str, *, timeout: float) -> Any:
        """The decoded answer to a GET on the API's root; used to see whether the endpoint is up."""
        return self._json(await self._within(timeout, "GET", path, None))

    async def tell(self, path: str, body: Mapping[str, Any], *, timeout: float) -> None:
        """Have the server do something whose answer is only that it was done; beside requests for tokens."""
        await self._within(timeout, "POST", path, body)

    async def _within(self, timeout: float, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        try:
            async with asyncio.timeout(timeout):
                return await self._exchange(method, self.base_url + path, body)
        except TimeoutError:
            raise self._error("timeout", f"did not answer {path} within {timeout:.3g} s", retryable=True) from None

    async def _exchange(self, method: str, address: str, body: Mapping[str, Any] | None) -> bytes:
        data: bytes | io.BytesIO | None = None if body is None else jsontext.dumps(body)
        if isinstance(data, bytes) and len(data) >= LARGE_BODY:
            # aiohttp writes bytes in one go, which holds the loop, and warns of it.
            data = io.BytesIO(data)
        try:
            url = self._urls.get(address) or self._urls.setdefault(address, URL(address))
            headers = {**self._headers, **tracing.headers()} if self._joins_traces else self._headers
            async with self._session.request(method, url, data=data, headers=headers) as response:
                raw = await response.read()
        except aiohttp.ClientPayloadError as error:
            raise self._error("bad_response", f"broke off its answer: {error}") from error
        except aiohttp.ClientResponseError as error:
            raise self._error("bad_response", f"does not answer in HTTP: {error.message}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._error("connection", f"cannot be reached: {str(error) or type(error).__name__}") from error
        if response.status != 200:
            raise self._status_error(response.status, raw, response.headers.get("Retry-After"))
        return raw

    def _json(self, raw: bytes) -> Any:
        try:
            return jsontext.loads(raw)
        except ValueError as error:
            raise self._error("bad_response", f"answered with broken JSON ({error}): {_shown(raw)}") from None

    def _status_error(
        self, status: int, raw: bytes, retry_after: str | None
    ) -> "RetryableEndpointError | EndpointError":
        if status in (400, 413) and CONTEXT_FULL.search(raw[:BODY_SHOWN].decode(errors="replace")):
            return ContextFullError("context_full", self.without_key(f"{self.base_url} answered: {_shown(raw)}"))
        retryable = status == 429 or status >= 500
        error = self._error(f"http_{status}", f"answered HTTP {status}: {_shown(raw)}", retryable=retryable)
        if isinstance(error, RetryableEndpointError) and retry_after:
            error.retry_after = seconds_asked_for(retry_after, datetime.now(UTC))
        return error

    def _error(self, cause: str, what: str, *, retryable: bool = True) -> "RetryableEndpointError | EndpointError":
        kind = RetryableEndpointError if retryable else EndpointError
        return kind(cause, self.without_key(f"{self.base_url} (model {self.config.model_name}) {what}"))

    def without_key(self, text: str) -> str:
        """The text as it may be kept: some endpoints repeat the key they were sent."""
        return text.replace(self._key, HIDDEN) if self._key else text


class RetryableEndpointError(EndpointError):
    """Asking again, perhaps elsewhere, may succeed. `retry_after` is the wait the endpoint asked for, in seconds."""

    retry_after: float | None = None

    @property
    def no_room(self) -> bool:
        """Nothing is wrong but that it is asked too much, or too early."""
        return self.cause == NO_ROOM or (self.cause == NOT_NOW and self.retry_after is not None)


def work_in(answer: Any) -> float:
    """The tokens that an answer took to write, as vLLM and the hosted APIs or SGLang count them; 1 where none does."""
    tokens = 0
    for one in answer if isinstance(answer, list) else (answer,):
        told = one.get("usage") or one.get("meta_info") if isinstance(one, Mapping) else None
        count = told.get("completion_tokens") if isinstance(told, Mapping) else None
        tokens += count if isinstance(count, int) and count > 0 else 0
    return float(tokens or 1)


def _shown(raw: bytes) -> str:
    text = raw[:BODY_SHOWN].decode(errors="replace").strip()
    return (text or "(empty body)") + ("…" if len(raw) > BODY_SHOWN else "")
