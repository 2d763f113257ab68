"""Policy: what the inference server draws from, the newest weights at every moment.

Always true: every token comes with the version of the weights that drew it; a policy that cannot sample says so before
anybody asks.
"""

from collections.abc import Sequence
from typing import Protocol

from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.tokens.exchange import Answer


class Sampler(Protocol):
    """Draws from one set of weights, which never changes."""

    async def sample(self, ids: Sequence[int], request: SamplingRequest) -> Answer:
        """`request.n` completions of a prompt; their versions are all None. EndpointError when the engine fails."""
        ...

    async def logprobs(self, ids: Sequence[int]) -> list[float | None]:
        """The logprob of each token after those before it; None for the first."""
        ...


class Policy(Protocol):
    @property
    def version(self) -> int | None:
        """Of the weights that a request would be answered from now; None while none can be sampled from."""
        ...

    async def sample(self, ids: Sequence[int], request: SamplingRequest) -> Answer:
        """`request.n` completions, each token with its version. EndpointError when it cannot be had."""
        ...

    async def logprobs(self, ids: Sequence[int]) -> tuple[int, list[float | None]]:
        """The version that scores them, and the logprob of each token; None for the first."""
        ...
