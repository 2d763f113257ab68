"""SamplingPolicy: the policy drawn from one sampler at a time, the one of the newest weights.

Always true: a request under way ends on the weights it began with and says their version; a version never goes back.
Whoever asks while there is nothing to draw from waits, for so long and no longer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from hermes_rl.errors import ContextFullError, EndpointError
from hermes_rl.inference.endpoint import RetryableEndpointError
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.tokens.exchange import Answer
from hermes_rl.training.policy import Sampler

T = TypeVar("T")

PATIENCE = 60.0
# Samplers that one request is put to, should each be replaced because it failed.
TRIES = 3
# Seconds after which whoever waited in vain should ask again.
RETRY_AFTER = 5.0


class Weights(NamedTuple):
    version: int
    sampler: Sampler


class SamplingPolicy:
    """`failed` is told of each call that a sampler failed: the version it had, and the error.

    Whoever owns the policy may then withdraw those weights or publish others; the calls that failed ask these.
    """

    def __init__(
        self, *, patience: float = PATIENCE, failed: Callable[[int, EndpointError], None] | None = None
    ) -> None:
        self.failures = 0
        self._patience = patience
        self._failed = failed
        self._weights: Weights | None = None
        self._highest: int | None = None
        self._published = asyncio.Event()

    @property
    def version(self) -> int | None:
        return None if self._weights is None else self._weights.version

    def publish(self, version: int, sampler: Sampler) -> None:
        """Draw from these weights from now on. The version of before may come again: the same weights, drawn anew."""
        if self._highest is not None and version < self._highest:
            raise ValueError(f"version {version} was published after {self._highest}; a version never goes back")
        self._highest = version
        self._weights = Weights(version, sampler)
        self._published.set()

    def withdraw(self) -> None:
        """The weights cannot be drawn from any more: let whoever asks wait for the next."""
        self._weights = None
        self._published.clear()

    async def sample(self, ids: Sequence[int], request: SamplingRequest) -> Answer:
        version, answer = await self._ask(lambda sampler: _counted(sampler, ids, request))
        completions = (one._replace(versions=(version,) * len(one.tokens)) for one in answer.completions)
        return answer._replace(completions=tuple(completions))

    async def logprobs(self, ids: Sequence[int]) -> tuple[int, list[float | None]]:
        return await self._ask(lambda sampler: sampler.logprobs(ids))

    async def _ask(self, question: Callable[[Sampler], Awaitable[T]]) -> tuple[int, T]:
        """What the current sampler says, and its version; of the next one, where this was replaced when it failed."""
        tries = 0
        while True:
            weights = await self._current()
            tries += 1
            try:
                return weights.version, await question(weights.sampler)
            except ContextFullError:
                # The caller's doing, not the sampler's.
                raise
            except EndpointError as error:
                self.failures += 1
                if self._failed is not None:
                    self._failed(weights.version, error)
                lasting = not isinstance(error, RetryableEndpointError)
                if lasting or self._weights is weights or tries == TRIES:
                    raise

    async def _current(self) -> Weights:
        try:
            async with asyncio.timeout(self._patience):
                while self._weights is None:
                    await self._published.wait()
        except TimeoutError:
            error = RetryableEndpointError(
                "no_weights", f"there were no weights to draw from for {self._patience:g} s; ask again"
            )
            error.retry_after = RETRY_AFTER
            raise error from None
        return self._weights


async def _counted(sampler: Sampler, ids: Sequence[int], request: SamplingRequest) -> Answer:
    answer = await sampler.sample(ids, request)
    if len(answer.completions) != request.n:
        raise RetryableEndpointError(
            "bad_response", f"the sampler gave {len(answer.completions)} completions where {request.n} were asked for"
        )
    return answer
