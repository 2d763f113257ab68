"""TinkerSampler: samples from weights saved at a Tinker server.

Always true: a completion includes its stop token; one cut at the length limit never reports `stop`.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import tinker

from hermes_rl.core.errors import ConfigError, ContextFullError
from hermes_rl.inference.endpoint import RetryableEndpointError
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import EngineAnswer, Finish, Sampled
from hermes_rl.training.engines.protocol import EngineError
from hermes_rl.training.engines.tinker.calls import Calls

T = TypeVar("T")
UNSUPPORTED = (
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "min_tokens",
    "ignore_eos",
)
DEFAULTS = SamplingRequest.from_parameters({})


class TinkerSampler:
    """`decode` turns ids into text, for stop strings; `context` is the model's context length."""

    def __init__(
        self, client: tinker.SamplingClient, calls: Calls, decode: Callable[[Sequence[int]], str], context: int
    ) -> None:
        self._client, self._calls, self._decode, self._context = client, calls, decode, context

    async def sample(self, ids: Sequence[int], request: SamplingRequest) -> EngineAnswer:
        for name in UNSUPPORTED:
            if getattr(request, name) != getattr(DEFAULTS, name):
                raise ConfigError(f"the Tinker API does not support {name}; remove it from the sampling parameters")
        room = self._context - len(ids)
        if room < 1:
            raise ContextFullError(
                "context_full", f"the prompt has {len(ids)} tokens, but the context length is {self._context}"
            )
        max_tokens = min(request.max_tokens or room, room)
        parameters = tinker.SamplingParams(
            max_tokens=max_tokens,
            seed=request.seed,
            # An empty list would also disable the model's EOS token.
            stop=list(request.stop_token_ids) or None,
            temperature=request.temperature,
            top_k=request.top_k or -1,
            top_p=request.top_p,
        )
        prompt = tinker.ModelInput.from_ints(list(ids))
        answer = await self._run(self._client.sample_async(prompt, request.n, parameters))
        cut = Finish.LENGTH if max_tokens == request.max_tokens else Finish.CONTEXT
        return EngineAnswer(
            tuple(self._completion(sequence, request.stop, cut) for sequence in answer.sequences), tuple(ids), len(ids)
        )

    async def logprobs(self, ids: Sequence[int]) -> list[float | None]:
        scored = await self._run(self._client.compute_logprobs_async(tinker.ModelInput.from_ints(list(ids))))
        return [None, *scored[1:]]

    async def _run(self, request: Awaitable[T]) -> T:
        try:
            return await self._calls.run("sample", request)
        except EngineError as error:
            raise RetryableEndpointError("engine", str(error)) from error

    def _completion(self, sequence: tinker.SampledSequence, stops: Sequence[str], cut: Finish) -> Sampled:
        tokens, logprobs = tuple(sequence.tokens), tuple(map(float, sequence.logprobs or ()))
        finish = Finish.STOP if sequence.stop_reason == "stop" else cut
        end = self._stop_string_end(tokens, stops)
        if end is not None:
            # Drop the tokens after the stop string, as if they had not been sampled.
            tokens, logprobs, finish = tokens[:end], logprobs[:end], Finish.STOP
        return Sampled(tokens, logprobs, (None,) * len(tokens), finish)

    def _stop_string_end(self, tokens: Sequence[int], stops: Sequence[str]) -> int | None:
        """Length of the shortest prefix with a stop string. Done here: the SDK takes strings or ids, not both."""

        def has_stop(end: int) -> bool:
            text = self._decode(tokens[:end])
            return any(stop in text for stop in stops)

        if not stops or not has_stop(len(tokens)):
            return None
        return next(end for end in range(1, len(tokens) + 1) if has_stop(end))
