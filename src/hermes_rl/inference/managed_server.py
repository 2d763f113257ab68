"""ManagedServer, as in Atropos: `chat_completion` over token ids, for one rollout, with a record of every token.

It sends its requests through a ServerManager (server_manager.py), which chooses the endpoint.
The engine receives token ids and returns token ids with logprobs; text is only parsed from them. Recorded sequences
are checked against what went over the wire before they are handed out.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from hermes_rl import tracing
from hermes_rl.core.errors import ConfigError, ContextFullError, DeadlineError, EndpointError
from hermes_rl.core.messages import Message
from hermes_rl.core.observation import observe
from hermes_rl.core.trajectory import Sampling, Usage
from hermes_rl.core.trajectory import Sequence as TokenSequence
from hermes_rl.inference.completion import ChatCompletion, ChatMessage, Choice
from hermes_rl.inference.endpoint import Endpoint
from hermes_rl.inference.meter import Meter
from hermes_rl.inference.policy_pin import PolicyPin
from hermes_rl.inference.span_attributes import set_chat_attributes
from hermes_rl.inference.token_engines import MISSING_ROUTE, SamplingRequest, engine_for, logprobs_mode
from hermes_rl.inference.tokens.chat_format import ChatFormat, FormatSettings, Reply
from hermes_rl.inference.tokens.recorder import Opening, PreparedPrompt, Recorder
from hermes_rl.inference.tokens.sampled import EngineAnswer, Finish, Sampled
from hermes_rl.inference.tokens.token_check import Checked, WireLog

T = TypeVar("T")
SEED_RANGE = 2**31


@dataclass(frozen=True, slots=True)
class SequenceNode:
    """A sequence in the seeds' form, with -100 and 1.0 where a token was not sampled."""

    tokens: list[int]
    masked_tokens: list[int]
    logprobs: list[float]

    @classmethod
    def from_sequence(cls, sequence: TokenSequence) -> "SequenceNode":
        return cls(list(sequence.tokens), sequence.atropos_mask(), sequence.atropos_logprobs())


class EndpointPool(Protocol):
    """Sends requests to endpoints with retries, and knows the oldest policy version that is still trained on.

    `pin` is the policy version that an evaluation asks for; `meter` counts what requests use.
    """

    meter: Meter
    oldest_trainable: int | None
    pin: PolicyPin | None

    async def request_with_retries(
        self, send: Callable[[Endpoint, float], Awaitable[T]], prefer: Callable[[], Endpoint | None] | None
    ) -> T: ...


class ManagedServer:
    """Use as `async with server.managed_server(tokenizer=...)`. One rollout each; calls may overlap."""

    fits_context = True
    """A request may ask for more tokens than the context has room for; the reply says when the context is full."""
    reads_calls = True
    """Tool calls are parsed here, from token ids; the same characters in plain text are not a call."""

    def __init__(self, server: EndpointPool, chat_format: ChatFormat, settings: FormatSettings) -> None:
        self.format = chat_format
        self.settings = settings
        self._server = server
        self._recorder = Recorder(chat_format)
        self._wire_log = WireLog()
        self._endpoint: Endpoint | None = None
        self._oldest: int | None = None
        """The oldest policy version that sampled one of its tokens."""
        self._checked: Checked | None = None
        observe(self)

    async def chat_completion(
        self,
        messages: Sequence[Message],
        *,
        model: str | None = None,
        n: int = 1,
        split: str = "train",
        tools: Sequence[Mapping[str, Any]] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **parameters: Any,
    ) -> ChatCompletion:
        """As `ServerManager.chat_completion`; tool calls and reasoning are parsed from the sampled tokens."""
        request = self._request({**parameters, **(extra_body or {})}, n)
        prompt = self._recorder.prepare(messages, tools or ())
        with tracing.span("chat") as span:
            completion = None
            try:
                replies, answer = await self._sample(prompt, request, model, split)
                choices = [
                    Choice(index, _message(reply), _finish_reason(reply, sampled))
                    for index, (reply, sampled) in enumerate(zip(replies, answer.completions, strict=True))
                ]
                name = f"chatcmpl-{uuid.uuid4().hex}"
                completion = ChatCompletion(name, self._model(model), tuple(choices), _usage(prompt, answer))
                return completion
            finally:
                if span.on:
                    config = self._endpoint.config if self._endpoint else None
                    set_chat_attributes(span, config, model, parameters, messages, completion)

    async def completion(
        self,
        prompt: str | Sequence[int],
        *,
        model: str | None = None,
        n: int = 1,
        split: str = "train",
        extra_body: Mapping[str, Any] | None = None,
        **parameters: Any,
    ) -> list[str]:
        """Continue a prompt of text or ids. A prompt that extends an earlier answer keeps the sampled tokens."""
        request = self._request({**parameters, **(extra_body or {})}, n)
        prepared = self._recorder.prepare_text(prompt)
        _, answer = await self._sample(prepared, request, model, split)
        return [self.format.decode(sampled.tokens) for sampled in answer.completions]

    def begin_with(self, opening: Opening) -> None:
        """Begin where another rollout was: its prompt is sent as it was, id by id."""
        self._recorder.begin_with(opening)

    def checked(self) -> Checked:
        """The sequences so far that match what went over the wire, and the breaches of those that do not."""
        if self._checked is None:
            self._checked = self._wire_log.check(self._recorder.sequences(), self.format)
        return self._checked

    def get_state(self) -> dict[str, Any]:
        """The seeds' `managed_state`, with one node per sequence."""
        return {"nodes": [SequenceNode.from_sequence(sequence) for sequence in self.checked().sequences]}

    # --- asking an engine ---

    def _request(self, parameters: dict[str, Any], n: int) -> SamplingRequest:
        template = parameters.get("chat_template_kwargs")
        if template is not None and template != self.settings.template:
            raise ConfigError(
                f"chat_template_kwargs {template!r} differ from those the rollout started with; "
                "set them in the environment's extra_body, where they apply to every turn"
            )
        return SamplingRequest.from_parameters({**parameters, "n": n}, self.format.stop_token_ids)

    async def _sample(
        self, prompt: PreparedPrompt, request: SamplingRequest, model: str | None, split: str
    ) -> tuple[list[Reply], EngineAnswer]:
        async def send(endpoint: Endpoint, timeout: float) -> tuple[EngineAnswer, Sampling]:
            if split != "eval":
                self._check_staleness()
            self._endpoint = endpoint
            limited = _fit_to_context(request, prompt, endpoint)
            answer = await sample(endpoint, limited, timeout)
            whole = limited.max_tokens == request.max_tokens
            return answer if whole else _mark_context_full(answer), request.sampling(_logprobs_mode(endpoint))

        pin = self._server.pin
        headers = None if pin is None else pin.headers

        async def sample(endpoint: Endpoint, limited: SamplingRequest, timeout: float) -> EngineAnswer:
            def one(request: SamplingRequest) -> Awaitable[EngineAnswer]:
                return generate(endpoint, prompt.ids, request, model, split, timeout, headers)

            if not endpoint.config.n_kwarg_is_ignored or limited.n == 1:
                return await one(limited)
            single = [replace(limited, n=1, seed=_offset_seed(limited.seed, index)) for index in range(limited.n)]
            return _merge_answers(await asyncio.gather(*map(one, single)))

        # The endpoint of the earlier turns has their prefix cached.
        answer, sampling = await self._server.request_with_retries(send, prefer=lambda: self._endpoint)
        self._checked = None
        usage = _usage(prompt, answer)
        observe(usage)
        if self._endpoint is not None:
            self._server.meter.add(usage, self._endpoint.config)
        if pin is not None:
            pin.sampled.note(*{version for sampled in answer.completions for version in sampled.versions})
        seen_versions = {self._oldest}.union(*(sampled.versions for sampled in answer.completions))
        self._oldest = min((version for version in seen_versions if version is not None), default=None)
        self._wire_log.note(prompt.ids, answer)
        return self._recorder.record(prompt, answer.completions, sampling), answer

    def _check_staleness(self) -> None:
        """Stop sampling for a rollout that is too stale to be trained on: its oldest token only gets older."""
        oldest_allowed = self._server.oldest_trainable
        if oldest_allowed is not None and self._oldest is not None and self._oldest < oldest_allowed:
            raise DeadlineError(
                "stale",
                f"the rollout's oldest tokens are of version {self._oldest}, and the trainer accepts none before "
                f"{oldest_allowed}; if many rollouts end like this, they take too long for the trainer's max_staleness",
            )

    def _model(self, model: str | None) -> str:
        return model or (self._endpoint.config.model_name if self._endpoint else "")


async def generate(
    endpoint: Endpoint,
    ids: Sequence[int],
    request: SamplingRequest,
    model: str | None,
    split: str,
    timeout: float,
    headers: Mapping[str, str] | None = None,
) -> EngineAnswer:
    """Send one request on the best route that the endpoint has."""
    engine = engine_for(endpoint.config.server_type)
    if engine is None:
        raise _no_tokens_error(endpoint)
    for number, route in enumerate(engine.routes[endpoint.missing_routes :], endpoint.missing_routes):
        path, body = route.request(model or endpoint.config.model_name, ids, request)
        try:
            raw = await endpoint.post(path, body, split=split, timeout=timeout, at_root=True, headers=headers)
        except EndpointError as error:
            if error.cause not in MISSING_ROUTE or route is engine.routes[-1]:
                raise
            continue
        # Only after a success: a model that the server does not know is missing from all of its routes.
        endpoint.missing_routes = number
        try:
            return route.answer(raw, ids, request)
        except EndpointError as error:
            raise type(error)(error.cause, endpoint.redact(f"{endpoint.base_url}: {error}")) from None
    raise RuntimeError("an engine has at least one route")


def _logprobs_mode(endpoint: Endpoint) -> str:
    logprobs = logprobs_mode(endpoint.config)
    if logprobs is None:
        raise _no_tokens_error(endpoint)
    return logprobs


def _no_tokens_error(endpoint: Endpoint) -> ConfigError:
    return ConfigError(f"a server of type {endpoint.config.server_type} returns no token ids; use vllm or sglang")


def _fit_to_context(request: SamplingRequest, prompt: PreparedPrompt, endpoint: Endpoint) -> SamplingRequest:
    """Limit the request to the room in the context: SGLang refuses longer requests, and an exactly full context."""
    context = endpoint.context_tokens
    if context is None:
        return request
    room = context - len(prompt.ids) - 1
    if room < 1:
        message = f"the prompt has {len(prompt.ids)} tokens, the model's context {context}"
        raise ContextFullError("context_full", message, (len(prompt.ids), context))
    return replace(request, max_tokens=min(request.max_tokens or room, room))


def _mark_context_full(answer: EngineAnswer) -> EngineAnswer:
    """For a request shortened to the context: reaching its length limit means that the context is full."""
    return answer._replace(
        completions=tuple(
            sampled._replace(finish=Finish.CONTEXT) if sampled.finish is Finish.LENGTH else sampled
            for sampled in answer.completions
        )
    )


def _merge_answers(answers: Sequence[EngineAnswer]) -> EngineAnswer:
    """Merge answers to one prompt. If the engine read the prompt differently for one of them, that prompt is kept."""
    first = next((answer for answer in answers if answer.prompt != answers[0].prompt), answers[0])
    return first._replace(completions=tuple(sampled for answer in answers for sampled in answer.completions))


def _offset_seed(seed: int | None, index: int) -> int | None:
    return None if seed is None else (seed + index) % SEED_RANGE


def _message(reply: Reply) -> ChatMessage:
    reasoning = {"reasoning_content": reply.reasoning} if reply.reasoning else {}
    return ChatMessage("assistant", reply.content, reply.calls, reply.reasoning, reasoning, reply.broken)


def _finish_reason(reply: Reply, sampled: Sampled) -> str:
    return "tool_calls" if reply.calls and sampled.finish is Finish.STOP else sampled.finish.value


def _usage(prompt: PreparedPrompt, answer: EngineAnswer) -> Usage:
    return Usage(len(prompt.ids), sum(len(sampled.tokens) for sampled in answer.completions))
