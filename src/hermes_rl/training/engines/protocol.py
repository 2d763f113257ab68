"""The engine interface of the trainer: steps, checkpoints, samplers.

Always true: a step completes or raises EngineError. After an error the weights are undefined, and the trainer resumes
from a checkpoint.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from hermes_rl.core.errors import HermesRLError
from hermes_rl.training.policy import WeightsSampler

if TYPE_CHECKING:
    from numpy import float32, int64
    from numpy.typing import NDArray


# The loss of supervised fine-tuning, by its name in the Tinker API.
CROSS_ENTROPY = "cross_entropy"


class EngineError(HermesRLError):
    """The engine refused, failed or is unreachable. `permanent` errors are not worth a retry."""

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


@dataclass(frozen=True, slots=True)
class Example:
    """One training sequence: all tokens but the last, and as targets the token after each.

    `mask` is 1 on targets that the policy sampled. `logprobs` are the targets' sampling logprobs; they and `advantages`
    are 0 where `mask` is 0.
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
class StepResult:
    """Per example, the logprobs of all targets just before the step; and the engine's metrics."""

    logprobs: Sequence["NDArray[float32]"]
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineCheckpoint:
    """A checkpoint at the engine: `state` resumes training, including the optimizer; `sampler` can be sampled from."""

    state: str
    sampler: str


class TrainingEngine(Protocol):
    """One policy in training."""

    async def step(
        self, examples: Sequence[Example], loss: str, clip: tuple[float, float] | None, adam: Adam
    ) -> StepResult:
        """Submit forward-backward and the optimizer step together.

        CROSS_ENTROPY takes the advantages as weights of the tokens: its loss is the sum of -weight * logprob.
        """
        ...

    async def logprobs(self, examples: Sequence[Example]) -> Sequence["NDArray[float32]"]:
        """Logprobs of all targets under the current weights."""
        ...

    async def save(self, name: str, *, sampler: str | None = None) -> EngineCheckpoint:
        """Save a checkpoint. `sampler` is the path of these weights if they are saved for sampling already."""
        ...

    async def save_sampler(self, name: str) -> str:
        """Save weights for sampling only; returns their path."""
        ...

    async def sampler(self, path: str | None) -> WeightsSampler:
        """A sampler of saved weights; of the base model for None."""
        ...

    async def delete(self, saved: EngineCheckpoint) -> None:
        """A checkpoint that no longer exists is ignored."""
        ...

    async def close(self) -> None: ...
