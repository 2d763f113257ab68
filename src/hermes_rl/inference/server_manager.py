"""Talking to the model: one `chat_completion` over one or more endpoints.

The least loaded endpoint gets the request, or the one that has the conversation's prefix. What can be tried again is:
at once on another endpoint that is well, else after a wait, within the deadline. What is raised in the end is an
EndpointError that names the endpoint, the status and the body.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, TypeVar

from hermes_rl import tracing
from hermes_rl.errors import ConfigError, EndpointError
from hermes_rl.inference.chat_span import note_chat
from hermes_rl.inference.completion import ChatCompletion
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.endpoint import Endpoint, RetryableEndpointError
from hermes_rl.inference.endpoints import Endpoints
from hermes_rl.inference.managed_server import ManagedServer
from hermes_rl.inference.pressure import Law
from hermes_rl.inference.readiness import wait_for
from hermes_rl.inference.token_engines import engine_for
from hermes_rl.messages import Message
from hermes_rl.tokens.chat_format import ChatFormat, FormatSettings
from hermes_rl.tokens.formats import chat_format
from hermes_rl.waiting import pause

T = TypeVar("T")


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
    """Use as `async with`. Endpoints are opened on first use, on the loop that uses them.

    With a `law`, requests in flight follow each engine: one that an engine has no room for waits here, as long as its
    time lasts, and is no failure.
    """

    def __init__(
        self, configs: Sequence[APIServerConfig], *, retries: RetryPolicy | None = None, law: Law | None = None
    ) -> None:
        if not configs or any(config.base_url is None for config in configs):
            raise ConfigError("no inference endpoint was chosen; pass --openai.base_url and --openai.model_name")
        self.retries = retries or RetryPolicy()
        self.endpoints = Endpoints(configs, law)
        self.oldest_useful: int | None = None
        """The oldest version of the policy that is still trained on, where a trainer says so."""
        self._formats: dict[tuple[int, str], tuple[Any, ChatFormat]] = {}
        self.tool_parser = "hermes"
        """The format of tool calls, for `managed_server` without settings."""

    @property
    def configs(self) -> list[APIServerConfig]:
        """What the endpoints were given; those that a file names are as the first."""
        return self.endpoints.configs

    @property
    def law(self) -> Law | None:
        """How requests in flight follow the engines; None where they do not."""
        return self.endpoints.law

    @property
    def servers(self) -> list[Endpoint]:
        """The endpoints, in the order of the configuration."""
        return self.endpoints.all

    async def chat_completion(
        self,
        messages: Sequence[Message],
        *,
        model: str | None = None,
        n: int = 1,
        split: str = "train",
        extra_body: dict[str, Any] | None = None,
        session: "ChatSession | None" = None,
        **parameters: Any,
    ) -> ChatCompletion:
        """Ask for `n` completions; further parameters (temperature, max_tokens, tools, seed …) go out as they are."""
        body: dict[str, Any] = {"model": model, "messages": messages, "n": n}
        body |= {name: value for name, value in parameters.items() if value is not None}
        if extra_body:
            body.update(extra_body)

        asked = self.configs[0]
        prefer = None if session is None else lambda: session.endpoint

        async def once(endpoint: Endpoint, timeout: float) -> ChatCompletion:
            nonlocal asked
            asked = endpoint.config
            if session is not None:
                session.endpoint = endpoint
            body["model"] = model or asked.model_name
            answer = await endpoint.post("/chat/completions", body, split=split, timeout=timeout)
            return _completion(answer, endpoint)

        with tracing.span("chat") as span:
            if not span.on:
                return await self.exchange(once, prefer)
            completion = None
            try:
                completion = await self.exchange(once, prefer)
                return completion
            finally:
                note_chat(span, asked, model, parameters, messages, completion)

    async def exchange(
        self, once: Callable[[Endpoint, float], Awaitable[T]], prefer: Callable[[], Endpoint | None] | None = None
    ) -> T:
        """Do something `once` with an endpoint, in so many seconds; again, perhaps elsewhere, while that may help.

        `prefer` says which endpoint to take while it is well.
        """
        endpoints = self.endpoints
        deadline = time.monotonic() + self._longest_timeout()
        attempt, refused, failed = 0, 0, None
        while True:
            endpoint = endpoints.choose(prefer() if prefer else None, failed)
            timeout = min(endpoint.config.timeout, deadline - time.monotonic())
            try:
                return await once(endpoint, timeout)
            except RetryableEndpointError as error:
                # Where its requests follow an engine, having no room for one of them is no failure.
                followed = endpoint.gate is not None and error.no_room
                if not followed or (endpoint.gate and endpoint.gate.pressure.refuses_all):
                    endpoints.rest(endpoint, max(self.retries.rest, error.retry_after or 0.0))
                elsewhere = endpoints.room_beside(endpoint)
                wait = 0.0 if elsewhere else self.retries.wait_before(attempt + refused, error.retry_after)
                given_up = not followed and attempt >= endpoint.config.max_retries
                if given_up or time.monotonic() + wait >= deadline:
                    raise EndpointError(error.cause, f"{error} (after {attempt + refused + 1} tries)") from error
                failed = endpoint if elsewhere or not followed else None
                attempt += not followed
                refused += followed
                await asyncio.sleep(wait)

    def session(self) -> "ChatSession":
        """For the calls of one conversation: they go to the endpoint that has its prefix."""
        return ChatSession(self)

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
                    questions.create_task(wait_for(endpoint, timeout))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    @property
    def context_tokens(self) -> int | None:
        """The smallest context among the endpoints that told theirs."""
        return self.endpoints.context_tokens

    async def close(self) -> None:
        """Close all connections; the next call opens them anew."""
        await self.endpoints.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    def _longest_timeout(self) -> float:
        configs = self.configs
        return configs[0].timeout if len(configs) == 1 else max(config.timeout for config in configs)


class ChatSession:
    """One conversation in chat mode. Its prefix is at `endpoint`, the one that was asked last."""

    def __init__(self, server: ServerManager) -> None:
        self._server = server
        self.endpoint: Endpoint | None = None

    async def chat_completion(self, messages: Sequence[Message], **parameters: Any) -> ChatCompletion:
        """As `ServerManager.chat_completion`."""
        return await self._server.chat_completion(messages, session=self, **parameters)


def _completion(answer: Any, endpoint: Endpoint) -> ChatCompletion:
    """What the endpoint said; an answer that cannot be read may be better the next time."""
    try:
        return ChatCompletion.of(answer, endpoint.base_url)
    except EndpointError as error:
        raise RetryableEndpointError(error.cause, endpoint.without_key(str(error))) from None
