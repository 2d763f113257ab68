"""TinkerSampler: draws from weights saved at a Tinker server.

Always true: the token that ended a completion is among its tokens; one that was cut by its length never says `stop`.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import tinker

from hermes_rl.errors import ConfigError, ContextFullError
from hermes_rl.inference.endpoint import RetryableEndpointError
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.tokens.exchange import Answer, Finish, Sampled
from hermes_rl.training.engine import EngineError
from hermes_rl.training.tinker_api.calls import Calls

T = TypeVar("T")
NOT_TINKERS = (
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "min_tokens",
    "ignore_eos",
)
PLAIN = SamplingRequest.of({})


class TinkerSampler:
    """`decode` gives the text of ids, for stop strings; `context` is how many tokens the model holds."""

    def __init__(
        self, client: tinker.SamplingClient, calls: Calls, decode: Callable[[Sequence[int]], str], context: int
    ) -> None:
        self._client, self._calls, self._decode, self._context = client, calls, decode, context

    async def sample(self, ids: Sequence[int], request: SamplingRequest) -> Answer:
        for name in NOT_TINKERS:
            if getattr(request, name) != getattr(PLAIN, name):
                raise ConfigError(f"the Tinker API knows no {name}; leave it out of the sampling")
        room = self._context - len(ids)
        if room < 1:
            raise ContextFullError(
                "context_full", f"the prompt has {len(ids)} tokens, the context length is {self._context}"
            )
        most = min(request.max_tokens or room, room)
        parameters = tinker.SamplingParams(
            max_tokens=most,
            seed=request.seed,
            # An empty list would also disable the model's own end.
            stop=list(request.stop_token_ids) or None,
            temperature=request.temperature,
            top_k=request.top_k or -1,
            top_p=request.top_p,
        )
        prompt = tinker.ModelInput.from_ints(list(ids))
        answer = await self._drawn(self._client.sample_async(prompt, request.n, parameters))
        cut = Finish.LENGTH if most == request.max_tokens else Finish.CONTEXT
        return Answer(tuple(self._completion(one, request.stop, cut) for one in answer.sequences), tuple(ids), len(ids))

    async def logprobs(self, ids: Sequence[int]) -> list[float | None]:
        scored = await self._drawn(self._client.compute_logprobs_async(tinker.ModelInput.from_ints(list(ids))))
        return [None, *scored[1:]]

    async def _drawn(self, request: Awaitable[T]) -> T:
        try:
            return await self._calls.made("sample", request)
        except EngineError as error:
            raise RetryableEndpointError("engine", str(error)) from error

    def _completion(self, sequence: tinker.SampledSequence, stops: Sequence[str], cut: Finish) -> Sampled:
        tokens, logprobs = tuple(sequence.tokens), tuple(map(float, sequence.logprobs or ()))
        finish = Finish.STOP if sequence.stop_reason == "stop" else cut
        end = self._end_by_text(tokens, stops)
        if end is not None:
            # What follows a stop string nobody asked for; cut here it is as if it had not been drawn.
            tokens, logprobs, finish = tokens[:end], logprobs[:end], Finish.STOP
        return Sampled(tokens, logprobs, (None,) * len(tokens), finish)

    def _end_by_text(self, tokens: Sequence[int], stops: Sequence[str]) -> int | None:
        """How many tokens it takes until one of the strings is there; the SDK takes strings or ids, not both."""

        def stopped(end: int) -> bool:
            text = self._decode(tokens[:end])
            return any(stop in text for stop in stops)

        if not stops or not stopped(len(tokens)):
            return None
        return next(end for end in range(1, len(tokens) + 1) if stopped(end))
