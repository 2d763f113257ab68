"""Policy: what the inference server samples from: the newest weights, or a held version that a request names.

Always true: every token carries the version of the weights that sampled it; a policy that cannot sample has no version.
"""

from collections.abc import Sequence
from typing import Protocol

from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import EngineAnswer


class WeightsSampler(Protocol):
    """Samples from one fixed set of weights."""

    async def sample(self, ids: Sequence[int], request: SamplingRequest) -> EngineAnswer:
        """Sample `request.n` completions, with versions all None. Raises EndpointError when the engine fails."""
        ...

    async def logprobs(self, ids: Sequence[int]) -> list[float | None]:
        """The logprob of each token given its prefix; None for the first."""
        ...


class Policy(Protocol):
    @property
    def version(self) -> int | None:
        """The version that a request would sample from now; None while there is none."""
        ...

    def hold(self, holder: str, version: int | None, seconds: float) -> int | None:
        """Keep a version, by default the newest, so that it can be sampled from for `seconds`; 0 seconds end the hold.

        Returns the version; None if it is not available any more, or too many versions are held.
        """
        ...

    async def sample(self, ids: Sequence[int], request: SamplingRequest, version: int | None = None) -> EngineAnswer:
        """Sample `request.n` completions, each token with its version. Raises EndpointError on failure.

        From `version` if it is still available, else from the newest weights.
        """
        ...

    async def logprobs(self, ids: Sequence[int], version: int | None = None) -> tuple[int, list[float | None]]:
        """The scoring version, and the logprob of each token; None for the first."""
        ...
