"""SamplingPolicy: a policy over one sampler at a time, that of the newest weights.

Always true: a request finishes on the weights it started with and carries their version; versions never decrease.
While there are no weights, requests wait up to `patience` seconds.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from hermes_rl.core.errors import ContextFullError, EndpointError
from hermes_rl.inference.endpoint import RetryableEndpointError
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import EngineAnswer
from hermes_rl.training.policy import WeightsSampler

T = TypeVar("T")

PATIENCE = 60.0
# Samplers tried per request, when each fails and is replaced.
MAX_ATTEMPTS = 3
# Seconds after which a caller that timed out should retry.
RETRY_AFTER = 5.0


class CurrentWeights(NamedTuple):
    version: int
    sampler: WeightsSampler


class SamplingPolicy:
    """`on_failure` gets the version and the error of each failed sampler call.

    The owner may then withdraw the weights or publish others; failed calls are retried on the new ones.
    """

    def __init__(
        self, *, patience: float = PATIENCE, on_failure: Callable[[int, EndpointError], None] | None = None
    ) -> None:
        self.failures = 0
        self._patience = patience
        self._on_failure = on_failure
        self._weights: CurrentWeights | None = None
        self._highest: int | None = None
        self._published = asyncio.Event()

    @property
    def version(self) -> int | None:
        return None if self._weights is None else self._weights.version

    def publish(self, version: int, sampler: WeightsSampler) -> None:
        """Sample from these weights from now on. Publishing the same version again replaces its sampler."""
        if self._highest is not None and version < self._highest:
            raise ValueError(f"version {version} was published after {self._highest}; versions never decrease")
        self._highest = version
        self._weights = CurrentWeights(version, sampler)
        self._published.set()

    def withdraw(self) -> None:
        """The weights can no longer be sampled from; requests wait for the next ones."""
        self._weights = None
        self._published.clear()

    async def sample(self, ids: Sequence[int], request: SamplingRequest) -> EngineAnswer:
        version, answer = await self._call(lambda sampler: _sample_checked(sampler, ids, request))
        completions = (each._replace(versions=(version,) * len(each.tokens)) for each in answer.completions)
        return answer._replace(completions=tuple(completions))

    async def logprobs(self, ids: Sequence[int]) -> tuple[int, list[float | None]]:
        return await self._call(lambda sampler: sampler.logprobs(ids))

    async def _call(self, request: Callable[[WeightsSampler], Awaitable[T]]) -> tuple[int, T]:
        """The current sampler's version and answer; retries if the sampler failed and was replaced."""
        tries = 0
        while True:
            weights = await self._current()
            tries += 1
            try:
                return weights.version, await request(weights.sampler)
            except ContextFullError:
                # The request's fault, not the sampler's.
                raise
            except EndpointError as error:
                self.failures += 1
                if self._on_failure is not None:
                    self._on_failure(weights.version, error)
                permanent = not isinstance(error, RetryableEndpointError)
                if permanent or self._weights is weights or tries == MAX_ATTEMPTS:
                    raise

    async def _current(self) -> CurrentWeights:
        try:
            async with asyncio.timeout(self._patience):
                while self._weights is None:
                    await self._published.wait()
        except TimeoutError:
            error = RetryableEndpointError(
                "no_weights", f"no weights to sample from for {self._patience:g} s; retry later"
            )
            error.retry_after = RETRY_AFTER
            raise error from None
        return self._weights


async def _sample_checked(sampler: WeightsSampler, ids: Sequence[int], request: SamplingRequest) -> EngineAnswer:
    answer = await sampler.sample(ids, request)
    if len(answer.completions) != request.n:
        raise RetryableEndpointError(
            "bad_response", f"the sampler returned {len(answer.completions)} completions instead of {request.n}"
        )
    return answer
