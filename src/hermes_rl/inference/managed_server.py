"""ManagedServer: `chat_completion` over token ids, for one rollout, with a record of every token.

Always true: an engine behind it is sent ids and gives back ids with their logprobs; text is only read from them. What
was recorded is held against what went over the wire before anybody gets it.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from hermes_rl import tracing
from hermes_rl.errors import ConfigError, ContextFullError, DeadlineError, EndpointError
from hermes_rl.inference.chat_span import note_chat
from hermes_rl.inference.completion import ChatCompletion, ChatMessage, Choice
from hermes_rl.inference.endpoint import Endpoint
from hermes_rl.inference.token_engines import ABSENT, SamplingRequest, engine_for, logprobs_of
from hermes_rl.messages import Message
from hermes_rl.tokens.chat_format import ChatFormat, FormatSettings, Reply
from hermes_rl.tokens.exchange import Answer, Finish, Sampled
from hermes_rl.tokens.invariant import Checked, Ledger
from hermes_rl.tokens.recorder import Ask, Recorder
from hermes_rl.trajectory import Sampling, Usage
from hermes_rl.trajectory import Sequence as TokenSequence

T = TypeVar("T")
SEED_RANGE = 2**31


@dataclass(frozen=True, slots=True)
class SequenceNode:
    """A sequence in the seeds' form: -100 and 1.0 stand where a token was not sampled."""

    tokens: list[int]
    masked_tokens: list[int]
    logprobs: list[float]

    @classmethod
    def of(cls, sequence: TokenSequence) -> "SequenceNode":
        return cls(list(sequence.tokens), sequence.atropos_mask(), sequence.atropos_logprobs())


class Exchanging(Protocol):
    """Who knows the endpoints, and which to try again; and what is too old to be trained on."""

    oldest_useful: int | None

    async def exchange(
        self, once: Callable[[Endpoint, float], Awaitable[T]], prefer: Callable[[], Endpoint | None] | None
    ) -> T: ...


class ManagedServer:
    """Use as `async with server.managed_server(tokenizer=...)`. One rollout each; calls may overlap."""

    fits_context = True
    """A request may ask for more tokens than the context has room for; it is told when that is full."""
    reads_calls = True
    """Tool calls are read here, from token ids; the same words in a text are not one."""

    def __init__(self, server: Exchanging, chat_format: ChatFormat, settings: FormatSettings) -> None:
        self.format = chat_format
        self.settings = settings
        self._server = server
        self._recorder = Recorder(chat_format)
        self._ledger = Ledger()
        self._endpoint: Endpoint | None = None
        self._oldest: int | None = None
        """The oldest version that drew one of its tokens."""
        self._checked: Checked | None = None

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
        """As `ServerManager.chat_completion`; tool calls and thinking are read from the sampled tokens."""
        request = self._request({**parameters, **(extra_body or {})}, n)
        ask = self._recorder.ask(messages, tools or ())
        with tracing.span("chat") as span:
            completion = None
            try:
                replies, answer = await self._sampled(ask, request, model, split)
                choices = [
                    Choice(index, _message(reply), _finish_reason(reply, sampled))
                    for index, (reply, sampled) in enumerate(zip(replies, answer.completions, strict=True))
                ]
                name = f"chatcmpl-{uuid.uuid4().hex}"
                completion = ChatCompletion(name, self._model(model), tuple(choices), _usage(ask, answer))
                return completion
            finally:
                if span.on:
                    config = self._endpoint.config if self._endpoint else None
                    note_chat(span, config, model, parameters, messages, completion)

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
        """The texts that go on from a prompt of text or ids; a prompt that goes on from an answer keeps its tokens."""
        request = self._request({**parameters, **(extra_body or {})}, n)
        ask = self._recorder.ask_text(prompt)
        _, answer = await self._sampled(ask, request, model, split)
        return [self.format.decode(sampled.tokens) for sampled in answer.completions]

    def checked(self) -> Checked:
        """The sequences so far that hold against what went over the wire, and the breaches of those that do not."""
        if self._checked is None:
            self._checked = self._ledger.check(self._recorder.recorded(), self.format)
        return self._checked

    def get_state(self) -> dict[str, Any]:
        """The seeds' `managed_state`: a node for each sequence."""
        return {"nodes": [SequenceNode.of(sequence) for sequence in self.checked().sequences]}

    # --- asking an engine ---

    def _request(self, parameters: dict[str, Any], n: int) -> SamplingRequest:
        template = parameters.get("chat_template_kwargs")
        if template is not None and template != self.settings.template:
            raise ConfigError(
                f"chat_template_kwargs {template!r} were not known when the rollout began; "
                "set them in the environment's extra_body, where they hold for every turn"
            )
        return SamplingRequest.of({**parameters, "n": n}, self.format.stop_token_ids)

    async def _sampled(
        self, ask: Ask, request: SamplingRequest, model: str | None, split: str
    ) -> tuple[list[Reply], Answer]:
        async def once(endpoint: Endpoint, timeout: float) -> tuple[Answer, Sampling]:
            if split != "eval":
                self._must_be_useful()
            self._endpoint = endpoint
            asked = _within_context(request, ask, endpoint)
            answer = await sample(endpoint, asked, timeout)
            whole = asked.max_tokens == request.max_tokens
            return answer if whole else _cut_by_context(answer), request.sampling(_logprobs(endpoint))

        async def sample(endpoint: Endpoint, asked: SamplingRequest, timeout: float) -> Answer:
            if not endpoint.config.n_kwarg_is_ignored or asked.n == 1:
                return await generate(endpoint, ask.ids, asked, model, split, timeout)
            alone = [replace(asked, n=1, seed=_seed(asked.seed, place)) for place in range(asked.n)]
            return _together(
                await asyncio.gather(*(generate(endpoint, ask.ids, one, model, split, timeout) for one in alone))
            )

        # The endpoint of the turns before has their prefix in its cache.
        answer, sampling = await self._server.exchange(once, prefer=lambda: self._endpoint)
        self._checked = None
        drew = {self._oldest}.union(*(sampled.versions for sampled in answer.completions))
        self._oldest = min((version for version in drew if version is not None), default=None)
        self._ledger.note(ask.ids, answer)
        return self._recorder.hear(ask, answer.completions, sampling), answer

    def _must_be_useful(self) -> None:
        """What nobody will train on is not worth an engine's time: its oldest token only grows older."""
        useful = self._server.oldest_useful
        if useful is not None and self._oldest is not None and self._oldest < useful:
            raise DeadlineError(
                "stale",
                f"its oldest tokens are of version {self._oldest}, and the trainer takes none before {useful}; where "
                "many end so, rollouts take too long for the trainer's max_staleness",
            )

    def _model(self, model: str | None) -> str:
        return model or (self._endpoint.config.model_name if self._endpoint else "")


async def generate(
    endpoint: Endpoint, ids: Sequence[int], request: SamplingRequest, model: str | None, split: str, timeout: float
) -> Answer:
    """One request on the best route the endpoint has."""
    engine = engine_for(endpoint.config.server_type)
    if engine is None:
        raise _no_tokens(endpoint)
    for number, route in enumerate(engine.routes[endpoint.absent_routes :], endpoint.absent_routes):
        path, body = route.request(model or endpoint.config.model_name, ids, request)
        try:
            raw = await endpoint.post(path, body, split=split, timeout=timeout, at_root=True)
        except EndpointError as error:
            if error.cause not in ABSENT or route is engine.routes[-1]:
                raise
            continue
        # Only now: a model that the server does not know is absent from all of its routes.
        endpoint.absent_routes = number
        try:
            return route.answer(raw, ids, request)
        except EndpointError as error:
            raise type(error)(error.cause, endpoint.without_key(f"{endpoint.base_url}: {error}")) from None
    raise RuntimeError("an engine has at least one route")


def _logprobs(endpoint: Endpoint) -> str:
    logprobs = logprobs_of(endpoint.config)
    if logprobs is None:
        raise _no_tokens(endpoint)
    return logprobs


def _no_tokens(endpoint: Endpoint) -> ConfigError:
    return ConfigError(f"a server of type {endpoint.config.server_type} gives no tokens; use vllm or sglang")


def _within_context(request: SamplingRequest, ask: Ask, endpoint: Endpoint) -> SamplingRequest:
    """The request with a length that the context has room for: SGLang refuses longer ones, and a full one too."""
    context = endpoint.context_tokens
    if context is None:
        return request
    room = context - len(ask.ids) - 1
    if room < 1:
        told = f"the prompt has {len(ask.ids)} tokens, the model's context {context}"
        raise ContextFullError("context_full", told, (len(ask.ids), context))
    return replace(request, max_tokens=min(request.max_tokens or room, room))


def _cut_by_context(answer: Answer) -> Answer:
    """The answer to a request that was shortened: as many tokens as were asked for mean a full context."""
    return answer._replace(
        completions=tuple(
            sampled._replace(finish=Finish.CONTEXT) if sampled.finish is Finish.LENGTH else sampled
            for sampled in answer.completions
        )
    )


def _together(answers: Sequence[Answer]) -> Answer:
    """Answers to the same prompt as one; the first prompt that the engine read otherwise stands for all."""
    first = next((answer for answer in answers if answer.prompt != answers[0].prompt), answers[0])
    return first._replace(completions=tuple(sampled for answer in answers for sampled in answer.completions))


def _seed(seed: int | None, place: int) -> int | None:
    return None if seed is None else (seed + place) % SEED_RANGE


def _message(reply: Reply) -> ChatMessage:
    thinking = {"reasoning_content": reply.reasoning} if reply.reasoning else {}
    return ChatMessage("assistant", reply.content, reply.calls, reply.reasoning, thinking, reply.broken)


def _finish_reason(reply: Reply, sampled: Sampled) -> str:
    return "tool_calls" if reply.calls and sampled.finish is Finish.STOP else sampled.finish.value


def _usage(ask: Ask, answer: Answer) -> Usage:
    return Usage(len(ask.ids), sum(len(sampled.tokens) for sampled in answer.completions))
