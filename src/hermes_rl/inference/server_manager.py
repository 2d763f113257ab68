"""ServerManager, as in Atropos: one `chat_completion` over one or more endpoints. managed_server.py records tokens.

A request goes to the endpoint that has the conversation's prefix, or to the least loaded one. Retryable errors are
retried within the deadline: immediately on another healthy endpoint, otherwise after a wait. The final
EndpointError names the endpoint, the status and the body.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, TypeVar

from hermes_rl import tracing
from hermes_rl.core.backoff import backoff_seconds
from hermes_rl.core.errors import ConfigError, EndpointError
from hermes_rl.core.messages import Message
from hermes_rl.core.observation import observe
from hermes_rl.core.trajectory import Usage
from hermes_rl.inference.completion import ChatCompletion
from hermes_rl.inference.concurrency_limiter import LimiterConfig
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.endpoint import Endpoint, RetryableEndpointError
from hermes_rl.inference.endpoint_pool import Endpoints
from hermes_rl.inference.managed_server import SEED_RANGE, ManagedServer
from hermes_rl.inference.meter import Meter, current_meter
from hermes_rl.inference.outage import Outage
from hermes_rl.inference.policy_pin import PolicyPin, pin_policy
from hermes_rl.inference.readiness import wait_for_endpoint
from hermes_rl.inference.reasoning import Reasoning
from hermes_rl.inference.span_attributes import set_chat_attributes
from hermes_rl.inference.token_engines import engine_for
from hermes_rl.inference.tokens.chat_format import ChatFormat, FormatSettings
from hermes_rl.inference.tokens.factory import chat_format

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Seconds between retries, and how long a failed endpoint is skipped while there are others."""

    first_wait: float = 0.5
    max_wait: float = 30.0
    rest: float = 5.0

    def wait_before(self, attempt: int, asked_for: float | None) -> float:
        """The wait that the endpoint asked for, else exponential backoff with jitter; attempts count from 0."""
        if asked_for is not None:
            return asked_for
        return backoff_seconds(attempt, initial=self.first_wait, maximum=self.max_wait)


class NoTokensError(ConfigError, NotImplementedError):
    """The endpoints return no token ids; Atropos raises NotImplementedError here, and authors catch it."""


class ServerManager:
    """Use as `async with`. Endpoints are opened on first use, on the event loop that uses them.

    With a `limiter_config`, the limit on requests in flight adapts to each engine. A request that an engine has no
    room for waits here until its deadline, and does not count as a failure.
    """

    def __init__(
        self,
        configs: Sequence[APIServerConfig],
        *,
        retries: RetryPolicy | None = None,
        limiter_config: LimiterConfig | None = None,
        reasoning: Reasoning | None = None,
    ) -> None:
        if not configs or any(config.base_url is None for config in configs):
            raise ConfigError("no inference endpoint was chosen; pass --openai.base_url and --openai.model_name")
        self.retries = retries or RetryPolicy()
        self.reasoning = reasoning
        """What every chat request asks of a model that reasons; None to ask nothing."""
        if reasoning is not None:
            for config in configs:
                reasoning.check(config)
        self.meter = current_meter()
        """What its requests used, together with those of other servers of the same environment."""
        self.endpoints = Endpoints(configs, limiter_config)
        self.outage = Outage(lambda: self.endpoints.all, max(config.outage_limit for config in configs))
        self.oldest_trainable: int | None = None
        """The oldest policy version that is still trained on, if a trainer reports one."""
        self.pin: PolicyPin | None = None
        """The policy version that requests ask for; only in a server from `pinned`."""
        self._formats: dict[tuple[int, str], tuple[Any, ChatFormat]] = {}
        self.tool_parser = "hermes"
        """The tool-call format of `managed_server` without settings."""

    @property
    def configs(self) -> list[APIServerConfig]:
        """The settings of each endpoint; endpoints from a file share those of the first."""
        return self.endpoints.configs

    @property
    def limiter_config(self) -> LimiterConfig | None:
        """How the limit on requests in flight adapts; None when it is fixed."""
        return self.endpoints.limiter_config

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
        skip_reasoning: bool = False,
        **parameters: Any,
    ) -> ChatCompletion:
        """Request `n` completions; other parameters (temperature, max_tokens, tools, seed …) are passed through.

        `skip_reasoning` leaves out what `reasoning` adds to the request.
        """
        body: dict[str, Any] = {"model": model, "messages": messages, "n": n}
        body |= {name: value for name, value in parameters.items() if value is not None}
        if extra_body:
            body.update(extra_body)

        used_config = self.configs[0]
        prefer = None if session is None else lambda: session.endpoint
        reasoning = None if skip_reasoning else self.reasoning

        async def send(endpoint: Endpoint, timeout: float) -> ChatCompletion:
            nonlocal used_config
            used_config = endpoint.config
            if session is not None:
                session.endpoint = endpoint
            body["model"] = model or used_config.model_name
            request = body if reasoning is None else reasoning.apply(body, endpoint.base_url)
            if n == 1 or not used_config.n_kwarg_is_ignored:
                return await _chat(endpoint, request, split, timeout, self.pin, self.meter)
            single = [_nth_request(request, index) for index in range(n)]
            return _merge(
                await asyncio.gather(*(_chat(endpoint, each, split, timeout, self.pin, self.meter) for each in single))
            )

        with tracing.span("chat") as span:
            if not span.on:
                return await self.request_with_retries(send, prefer)
            completion = None
            try:
                completion = await self.request_with_retries(send, prefer)
                return completion
            finally:
                set_chat_attributes(span, used_config, model, parameters, messages, completion)

    async def request_with_retries(
        self, send: Callable[[Endpoint, float], Awaitable[T]], prefer: Callable[[], Endpoint | None] | None = None
    ) -> T:
        """Call `send` with an endpoint and a timeout in seconds; retry, perhaps on another endpoint, while it may help.

        `prefer` returns the endpoint to use while it is healthy.
        """
        endpoints = self.endpoints
        deadline = time.monotonic() + self._longest_timeout()
        attempt, refused, failed = 0, 0, None
        while True:
            endpoint = endpoints.choose(prefer() if prefer else None, failed)
            timeout = min(endpoint.config.timeout, deadline - time.monotonic())
            try:
                return await send(endpoint, timeout)
            except RetryableEndpointError as error:
                # With an adaptive limit, an engine without room is not a failure.
                overloaded = endpoint.gate is not None and error.no_room
                if not overloaded or (endpoint.gate and endpoint.gate.limiter.refuses_all):
                    endpoints.rest(endpoint, max(self.retries.rest, error.retry_after or 0.0))
                others_free = endpoints.others_have_room(endpoint)
                wait = 0.0 if others_free else self.retries.wait_before(attempt + refused, error.retry_after)
                given_up = not overloaded and attempt >= endpoint.config.max_retries
                if given_up or time.monotonic() + wait >= deadline:
                    raise EndpointError(error.cause, f"{error} (after {attempt + refused + 1} tries)") from error
                failed = endpoint if others_free or not overloaded else None
                attempt += not overloaded
                refused += overloaded
                await asyncio.sleep(wait)

    @asynccontextmanager
    async def pinned(self, at_least: int | None = None) -> AsyncIterator[Self]:
        """A copy of this server, over the same endpoints, whose requests ask for one policy version and note theirs.

        It is the newest version, held by the trainer while the block runs; where that is impossible, the copy only
        notes versions. `at_least` is a version that was announced and may not be published yet.
        """
        async with pin_policy(self.servers, at_least) as pin:
            duplicate = copy(self)
            duplicate.pin = pin
            yield duplicate

    def session(self) -> "ChatSession":
        """A session for one conversation, whose calls go to the endpoint that has its prefix."""
        return ChatSession(self)

    @asynccontextmanager
    async def managed_server(
        self,
        tokenizer: Any,
        preserve_think_blocks: bool | None = None,
        settings: FormatSettings | None = None,
    ) -> AsyncIterator[ManagedServer]:
        """A server for one rollout, with the same `chat_completion`, that records every token it sends and receives.

        `settings` decide how the conversation is rendered; `preserve_think_blocks` is the seeds' name for one of them.
        """
        settings = settings or FormatSettings(parser=self.tool_parser)
        if preserve_think_blocks is not None:
            settings = replace(settings, keep_reasoning=preserve_think_blocks)
        if not self.returns_tokens:
            raise NoTokensError(
                "exact tokens come from a vLLM or SGLang server, or from hermes-rl's own trainer: "
                "pass --openai.server_type vllm (or sglang) for each endpoint"
            )
        yield ManagedServer(self, self.get_format(tokenizer, settings), settings)

    @property
    def returns_tokens(self) -> bool:
        """Whether every endpoint takes and returns token ids."""
        return all(engine_for(config.server_type) is not None for config in self.configs)

    def get_format(self, tokenizer: Any, settings: FormatSettings) -> ChatFormat:
        """The chat format for this tokenizer, ConfigError when there is none.

        Creating a format probes the chat template, so the rollouts of a run share it.
        """
        key = id(tokenizer), repr(settings)
        if key not in self._formats:
            self._formats[key] = tokenizer, chat_format(tokenizer, settings)
        return self._formats[key][1]

    async def wait_until_ready(self, timeout: float) -> None:
        """Wait until every endpoint with `health_check` answers; EndpointError when one does not in time."""
        checked = [endpoint for endpoint in self.servers if endpoint.config.health_check]
        try:
            async with asyncio.TaskGroup() as group:
                for endpoint in checked:
                    group.create_task(wait_for_endpoint(endpoint, timeout))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def waiting_text(self) -> str:
        """What a caller that waits is waiting for, and what to check."""
        if self.outage.text:
            return self.outage.text
        busy = [endpoint for endpoint in self.servers if endpoint.in_flight]
        if not busy:
            return "no request is at an endpoint: tools, sandboxes or rewards are at work"
        waits = ", ".join(f"{endpoint.in_flight} at {endpoint.base_url}" for endpoint in busy[:3])
        more = f" and {len(busy) - 3} more endpoints" if len(busy) > 3 else ""
        return (
            f"requests wait for an answer: {waits}{more}; if none comes, check the model server's log and its load, "
            "and --openai.timeout"
        )

    @property
    def context_tokens(self) -> int | None:
        """The smallest known context size among the endpoints."""
        return self.endpoints.context_tokens

    def latency_metrics(self) -> dict[str, float]:
        """Seconds of the latest requests of each endpoint, under Atropos' names."""
        return self.endpoints.latency_metrics()

    async def close(self) -> None:
        """Close all connections; the next call reopens them."""
        await self.outage.close()
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
    """One conversation in chat mode. `endpoint` is the one used last, which has the prefix."""

    def __init__(self, server: ServerManager) -> None:
        self._server = server
        self.endpoint: Endpoint | None = None

    async def chat_completion(self, messages: Sequence[Message], **parameters: Any) -> ChatCompletion:
        return await self._server.chat_completion(messages, session=self, **parameters)


async def _chat(
    endpoint: Endpoint, body: dict[str, Any], split: str, timeout: float, pin: PolicyPin | None, meter: Meter
) -> ChatCompletion:
    """Send a request and parse the answer. A malformed one is retryable, since the next may be well-formed."""
    headers = None if pin is None else pin.headers
    answer = await endpoint.post("/chat/completions", body, split=split, timeout=timeout, headers=headers)
    try:
        completion = ChatCompletion.parse(answer, endpoint.base_url)
    except EndpointError as error:
        raise RetryableEndpointError(error.cause, endpoint.redact(str(error))) from None
    observe(completion.usage)
    meter.add(completion.usage, endpoint.config)
    if pin is not None:
        version = answer.get("policy_version")
        pin.sampled.note(version if isinstance(version, int) else None)
    return completion


def _nth_request(body: dict[str, Any], index: int) -> dict[str, Any]:
    """One of several requests for one completion each; with the same seed, all would answer the same."""
    seed = {"seed": (body["seed"] + index) % SEED_RANGE} if "seed" in body else {}
    return {**body, "n": 1, **seed}


def _merge(completions: Sequence[ChatCompletion]) -> ChatCompletion:
    choices = [choice for completion in completions for choice in completion.choices]
    usage = sum((completion.usage for completion in completions), Usage())
    return completions[0]._replace(
        choices=tuple(replace(choice, index=index) for index, choice in enumerate(choices)), usage=usage
    )
