"""Talking to the model: one `chat_completion` over one or more endpoints.

The least loaded endpoint gets the request. What can be tried again is: at once on another endpoint that is well, else
after a wait, within the deadline. What is raised in the end is an EndpointError that names the endpoint, the status
and the body.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp

from hermes_rl import tracing
from hermes_rl.errors import ConfigError, EndpointError
from hermes_rl.inference.chat_span import note_chat
from hermes_rl.inference.completion import ChatCompletion
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.endpoint import CONNECT_TIMEOUT, Endpoint, RetryableEndpointError
from hermes_rl.inference.managed_server import ManagedServer
from hermes_rl.inference.token_engines import engine_for
from hermes_rl.messages import Message
from hermes_rl.tokens.chat_format import ChatFormat, FormatSettings
from hermes_rl.tokens.formats import chat_format
from hermes_rl.waiting import pause

T = TypeVar("T")
# Seconds one answer to "are you there" may take, and between two questions.
READY_ANSWER, READY_PAUSE = 5.0, 0.5


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Seconds between tries, and how long an endpoint that failed is passed over while there are others."""

    first_wait: float = 0.5
    longest_wait: float = 30.0
    rest: float = 5.0

    def wait_before(self, attempt: int, asked_for: float | None) -> float:
        """What the endpoint asked for, else a doubling wait with jitter; attempts count from 0."""
        if asked_for is not None:
            return asked_for
        return pause(attempt, first=self.first_wait, longest=self.longest_wait)


class ServerManager:
    """Use as `async with`. Endpoints are opened on first use, on the loop that uses them."""

    def __init__(self, configs: Sequence[APIServerConfig], *, retries: RetryPolicy | None = None) -> None:
        if not configs or any(config.base_url is None for config in configs):
            raise ConfigError("no inference endpoint was chosen; pass --openai.base_url and --openai.model_name")
        self.configs = list(configs)
        self.retries = retries or RetryPolicy()
        self._session: aiohttp.ClientSession | None = None
        self._endpoints: list[Endpoint] = []
        self._resting_until: dict[Endpoint, float] = {}
        self._formats: dict[tuple[int, str], tuple[Any, ChatFormat]] = {}
        self.tool_parser = "hermes"
        """The format of tool calls, for `managed_server` without settings."""

    @property
    def servers(self) -> list[Endpoint]:
        """The endpoints, in the order of the configuration."""
        if not self._endpoints:
            # No limit here: each endpoint bounds its own requests in flight.
            self._session = self._session or aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
                auto_decompress=True,
            )
            self._endpoints = [Endpoint(config, self._session) for config in self.configs]
        return self._endpoints

    async def chat_completion(
        self,
        messages: Sequence[Message],
        *,
        model: str | None = None,
        n: int = 1,
        split: str = "train",
        extra_body: dict[str, Any] | None = None,
        **parameters: Any,
    ) -> ChatCompletion:
        """Ask for `n` completions; further parameters (temperature, max_tokens, tools, seed …) go out as they are."""
        body: dict[str, Any] = {"model": model, "messages": messages, "n": n}
        body |= {name: value for name, value in parameters.items() if value is not None}
        if extra_body:
            body.update(extra_body)

        asked = self.configs[0]

        async def once(endpoint: Endpoint, timeout: float) -> ChatCompletion:
            nonlocal asked
            asked = endpoint.config
            body["model"] = model or asked.model_name
            answer = await endpoint.post("/chat/completions", body, split=split, timeout=timeout)
            return _completion(answer, endpoint)

        with tracing.span("chat") as span:
            if not span.on:
                return await self.exchange(once)
            completion = None
            try:
                completion = await self.exchange(once)
                return completion
            finally:
                note_chat(span, asked, model, parameters, messages, completion)

    async def exchange(
        self, once: Callable[[Endpoint, float], Awaitable[T]], prefer: Callable[[], Endpoint | None] | None = None
    ) -> T:
        """Do something `once` with an endpoint, in so many seconds; again, perhaps elsewhere, while that may help.

        `prefer` says which endpoint to take while it is well.
        """
        deadline = time.monotonic() + self._longest_timeout()
        attempt, failed = 0, None
        while True:
            endpoint = self._choose(failed, prefer() if prefer else None)
            timeout = min(endpoint.config.timeout, deadline - time.monotonic())
            try:
                return await once(endpoint, timeout)
            except RetryableEndpointError as error:
                wait = self.retries.wait_before(attempt, error.retry_after)
                self._resting_until[endpoint] = time.monotonic() + max(self.retries.rest, error.retry_after or 0.0)
                if any(other is not endpoint and not self._rests(other) for other in self.servers):
                    wait = 0.0
                if attempt >= endpoint.config.max_retries or time.monotonic() + wait >= deadline:
                    raise EndpointError(error.cause, f"{error} (after {attempt + 1} tries)") from error
                failed = endpoint
                attempt += 1
                await asyncio.sleep(wait)

    @asynccontextmanager
    async def managed_server(
        self,
        tokenizer: Any,
        preserve_think_blocks: bool | None = None,
        settings: FormatSettings | None = None,
    ) -> AsyncIterator[ManagedServer]:
        """A server of one rollout's own, with the same `chat_completion`, that keeps every token it sends and gets.

        `settings` say how the conversation is written; `preserve_think_blocks` is the seeds' name for one of them.
        """
        settings = settings or FormatSettings(parser=self.tool_parser)
        if preserve_think_blocks is not None:
            settings = replace(settings, keep_thinking=preserve_think_blocks)
        if not self.gives_tokens:
            raise ConfigError(
                "exact tokens come from a vLLM or SGLang server, or from hermes-rl's own trainer: "
                "pass --openai.server_type vllm (or sglang) for each endpoint"
            )
        yield ManagedServer(self, self.format_for(tokenizer, settings), settings)

    @property
    def gives_tokens(self) -> bool:
        """Whether every endpoint is of a kind that takes and gives token ids."""
        return all(engine_for(config.server_type) is not None for config in self.configs)

    def format_for(self, tokenizer: Any, settings: FormatSettings) -> ChatFormat:
        """How conversations are written for this tokenizer; a ConfigError when they cannot be.

        A template is looked into when its format is made, so the rollouts of a run share it.
        """
        key = id(tokenizer), repr(settings)
        if key not in self._formats:
            self._formats[key] = tokenizer, chat_format(tokenizer, settings)
        return self._formats[key][1]

    async def wait_until_ready(self, timeout: float) -> None:
        """Return when every endpoint whose `health_check` is on answers; EndpointError when one does not in time."""
        checked = [endpoint for endpoint in self.servers if endpoint.config.health_check]
        try:
            async with asyncio.TaskGroup() as questions:
                for endpoint in checked:
                    questions.create_task(_wait_for(endpoint, timeout))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    @property
    def context_tokens(self) -> int | None:
        """The smallest context among the endpoints that told theirs."""
        return min((one.context_tokens for one in self._endpoints if one.context_tokens), default=None)

    async def close(self) -> None:
        """Close all connections; the next call opens them anew."""
        if self._session is not None:
            session, self._session, self._endpoints = self._session, None, []
            await session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    def _longest_timeout(self) -> float:
        configs = self.configs
        return configs[0].timeout if len(configs) == 1 else max(config.timeout for config in configs)

    def _choose(self, failed: Endpoint | None, preferred: Endpoint | None) -> Endpoint:
        if len(self.servers) == 1:
            return self._endpoints[0]
        if preferred is not None and preferred is not failed and not self._rests(preferred):
            return preferred
        return min(self.servers, key=lambda endpoint: (endpoint is failed, self._rests(endpoint), endpoint.in_flight))

    def _rests(self, endpoint: Endpoint) -> bool:
        return self._resting_until.get(endpoint, 0.0) > time.monotonic()


def _completion(answer: Any, endpoint: Endpoint) -> ChatCompletion:
    """What the endpoint said; an answer that cannot be read may be better the next time."""
    try:
        return ChatCompletion.of(answer, endpoint.base_url)
    except EndpointError as error:
        raise RetryableEndpointError(error.cause, endpoint.without_key(str(error))) from None


async def _wait_for(endpoint: Endpoint, timeout: float) -> None:
    # /models asks without paying for a completion; vLLM, SGLang, llama.cpp and the hosted APIs all answer it.
    deadline = time.monotonic() + timeout
    while True:
        try:
            answer = await endpoint.get("/models", timeout=min(READY_ANSWER, deadline - time.monotonic()))
        except EndpointError as error:
            if not isinstance(error, RetryableEndpointError) or time.monotonic() + READY_PAUSE >= deadline:
                raise EndpointError(
                    "not_ready",
                    f"{error}. Start the model server, or check --openai.base_url; "
                    "--openai.health_check false skips this question for APIs that have no /models.",
                ) from error
        else:
            endpoint.context_tokens = context_tokens(answer, endpoint.config.model_name)
            return
        await asyncio.sleep(READY_PAUSE)


def context_tokens(models: Any, name: str) -> int | None:
    """The context of a model as its endpoint's list of models tells it; None when it does not."""
    rows = models.get("data") if isinstance(models, Mapping) else None
    known = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    for row in sorted(known, key=lambda row: row.get("id") != name)[:1]:
        meta = row.get("meta")
        # vLLM and SGLang, OpenRouter, llama.cpp.
        told = (
            row.get("max_model_len"),
            row.get("context_length"),
            meta.get("n_ctx") if isinstance(meta, Mapping) else 0,
        )
        return next((length for length in told if isinstance(length, int) and length > 0), None)
    return None
