"""ScriptedSampler: draws by a script, as an engine does: it ends at stop tokens and at max_tokens, and takes its time.

Always true: what it draws is settled by the script, or by the prompt, the seed and the completion's place alone; the
logprob of each token is `logprob_of` it.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeAlias

from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import EngineAnswer, Finish, Sampled
from tests.support.token_servers import logprob_of

# The tokens of the completion in this place.
TokenScript: TypeAlias = Callable[[Sequence[int], SamplingRequest, int], Sequence[int]]


class ScriptedSampler:
    """`asked` are the calls so far, `ended` those that were answered, `given_up` those that were cancelled.

    A script may raise.
    """

    def __init__(self, script: TokenScript, *, seconds: float = 0.0) -> None:
        self.script = script
        self.seconds = seconds
        self.asked: list[tuple[tuple[int, ...], SamplingRequest]] = []
        self.ended = 0
        self.given_up = 0

    async def sample(self, ids: Sequence[int], request: SamplingRequest) -> EngineAnswer:
        self.asked.append((tuple(ids), request))
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        drawn = [_ended(self.script(ids, request, place), request) for place in range(request.n)]
        self.ended += 1
        return EngineAnswer(tuple(drawn))

    async def logprobs(self, ids: Sequence[int]) -> list[float | None]:
        await asyncio.sleep(self.seconds)
        return [None, *map(logprob_of, ids[1:])]


def by_chance(vocabulary: int, most: int = 12) -> TokenScript:
    """Tokens below `vocabulary`, then a stop token; without a seed they differ from call to call."""

    def script(ids: Sequence[int], request: SamplingRequest, place: int) -> list[int]:
        chance = Random() if request.seed is None else Random(f"{request.seed} {place} {list(ids)}")
        return [*chance.choices(range(vocabulary), k=chance.randint(1, most)), *request.stop_token_ids[:1]]

    return script


def _ended(tokens: Sequence[int], request: SamplingRequest) -> Sampled:
    drawn = tuple(tokens)
    stop = next((place for place, token in enumerate(drawn) if token in request.stop_token_ids), len(drawn))
    kept = drawn[: min(stop + 1, request.max_tokens or len(drawn))]
    stopped = bool(kept) and kept[-1] in request.stop_token_ids
    return Sampled(
        kept,
        tuple(map(logprob_of, kept)),
        (None,) * len(kept),
        Finish.STOP if stopped else Finish.LENGTH,
    )
