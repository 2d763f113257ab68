"""SamplingPolicy: a policy over the sampler of the newest weights, and those of held versions.

Always true: a request finishes on the weights it started with and carries their version; versions never decrease.
While there are no weights, requests wait up to `patience` seconds, also those for a held version.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from hermes_rl.core.errors import ContextFullError, EndpointError
from hermes_rl.inference.endpoint import RetryableEndpointError
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import EngineAnswer
from hermes_rl.training.policy import WeightsSampler
from hermes_rl.training.version_holds import VersionHolds

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
        self._holds = VersionHolds()
        self._older: dict[int, CurrentWeights] = {}
        """Earlier weights that were held when others replaced them."""

    @property
    def version(self) -> int | None:
        return None if self._weights is None else self._weights.version

    @property
    def versions(self) -> frozenset[int]:
        """The versions whose samplers are kept, the newest among them."""
        return frozenset(self._older if self._weights is None else {*self._older, self._weights.version})

    @property
    def held(self) -> frozenset[int]:
        """Those of them that are held."""
        return self._holds.versions & self.versions

    def hold(self, holder: str, version: int | None, seconds: float) -> int | None:
        version = self.version if version is None else version
        if version is None or version not in self.versions:
            return None
        return version if self._holds.hold(holder, version, seconds) else None

    def publish(self, version: int, sampler: WeightsSampler, older: Mapping[int, WeightsSampler] | None = None) -> None:
        """Sample from these weights from now on. Publishing the same version again replaces its sampler.

        `older` replaces the samplers of all held versions.
        """
        if self._highest is not None and version < self._highest:
            raise ValueError(f"version {version} was published after {self._highest}; versions never decrease")
        self._keep_current()
        if older is not None:
            self._older = {number: CurrentWeights(number, each) for number, each in older.items()}
        held = self._holds.versions - {version}
        self._older = {number: weights for number, weights in self._older.items() if number in held}
        self._highest = version
        self._weights = CurrentWeights(version, sampler)
        self._published.set()

    def withdraw(self) -> None:
        """No weights can be sampled from; requests wait for the next ones."""
        self._keep_current()
        self._weights = None
        self._published.clear()

    def drop(self, version: int) -> None:
        """A held version can no longer be sampled from: its requests get the newest weights."""
        self._older.pop(version, None)

    async def sample(self, ids: Sequence[int], request: SamplingRequest, version: int | None = None) -> EngineAnswer:
        version, answer = await self._call(lambda sampler: _sample_checked(sampler, ids, request), version)
        completions = (each._replace(versions=(version,) * len(each.tokens)) for each in answer.completions)
        return answer._replace(completions=tuple(completions))

    async def logprobs(self, ids: Sequence[int], version: int | None = None) -> tuple[int, list[float | None]]:
        return await self._call(lambda sampler: sampler.logprobs(ids), version)

    async def _call(self, request: Callable[[WeightsSampler], Awaitable[T]], version: int | None) -> tuple[int, T]:
        """The sampler's version and answer; retries if the sampler failed and was replaced."""
        tries = 0
        while True:
            weights = await self._current(version)
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
                if permanent or self._available(version) is weights or tries == MAX_ATTEMPTS:
                    raise

    def _available(self, version: int | None) -> CurrentWeights | None:
        """The weights of a version if they are kept, else the newest; None while there are none."""
        if self._weights is None or version is None:
            return self._weights
        return self._older.get(version, self._weights)

    def _keep_current(self) -> None:
        if self._weights is not None:
            self._older[self._weights.version] = self._weights

    async def _current(self, version: int | None) -> CurrentWeights:
        try:
            async with asyncio.timeout(self._patience):
                while (weights := self._available(version)) is None:
                    await self._published.wait()
        except TimeoutError:
            error = RetryableEndpointError(
                "no_weights", f"no weights to sample from for {self._patience:g} s; retry later"
            )
            error.retry_after = RETRY_AFTER
            raise error from None
        return weights


async def _sample_checked(sampler: WeightsSampler, ids: Sequence[int], request: SamplingRequest) -> EngineAnswer:
    answer = await sampler.sample(ids, request)
    if len(answer.completions) != request.n:
        raise RetryableEndpointError(
            "bad_response", f"the sampler returned {len(answer.completions)} completions instead of {request.n}"
        )
    return answer
