"""What the trainer asks of an engine that trains: one step, a checkpoint, something to sample from.

Always true: a step is whole or it raises EngineError, and after that the weights are unknown: the trainer begins anew
from a checkpoint.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from hermes_rl.errors import HermesRLError
from hermes_rl.training.policy import Sampler

if TYPE_CHECKING:
    from numpy import float32, int64
    from numpy.typing import NDArray


class EngineError(HermesRLError):
    """The engine refused, failed or is away. `lasting`: asking again would not help."""

    def __init__(self, message: str, *, lasting: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting


@dataclass(frozen=True, slots=True)
class Example:
    """One sequence as a step takes it: the tokens but the last, and for each the one that follows.

    `logprobs` are those of the targets when they were sampled, `advantages` what each is worth; both are 0 where
    `mask` is, which is 1 on the targets that the policy sampled.
    """

    tokens: "NDArray[int64]"
    targets: "NDArray[int64]"
    logprobs: "NDArray[float32]"
    advantages: "NDArray[float32]"
    mask: "NDArray[float32]"


@dataclass(frozen=True, slots=True)
class Adam:
    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


@dataclass(frozen=True, slots=True)
class Stepped:
    """What came of a step: the logprobs of all targets before it, by example, and the engine's own metrics."""

    logprobs: Sequence["NDArray[float32]"]
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint at the engine: `state` to go on training from, optimizer too, and `sampler` to draw from."""

    state: str
    sampler: str


class TrainingEngine(Protocol):
    """One policy in training."""

    async def step(
        self, examples: Sequence[Example], loss: str, clip: tuple[float, float] | None, adam: Adam
    ) -> Stepped:
        """Gradients and the optimizer's step, submitted together."""
        ...

    async def logprobs(self, examples: Sequence[Example]) -> Sequence["NDArray[float32]"]:
        """Of all targets, from the weights in training."""
        ...

    async def save(self, name: str) -> Saved: ...

    async def save_sampler(self, name: str) -> str:
        """Only to draw from."""
        ...

    async def sampler(self, path: str | None) -> Sampler:
        """What draws from saved weights; None for the base model's."""
        ...

    async def delete(self, saved: Saved) -> None:
        """Harmless when it is gone."""
        ...

    async def close(self) -> None: ...
