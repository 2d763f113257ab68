"""Policy: what the inference server samples from, always the newest weights.

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

    async def sample(self, ids: Sequence[int], request: SamplingRequest) -> EngineAnswer:
        """Sample `request.n` completions, each token with its version. Raises EndpointError on failure."""
        ...

    async def logprobs(self, ids: Sequence[int]) -> tuple[int, list[float | None]]:
        """The scoring version, and the logprob of each token; None for the first."""
        ...
