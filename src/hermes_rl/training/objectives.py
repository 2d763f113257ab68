"""Objectives: the loss that a training step minimises.

An objective names the engine's loss and may reshape the examples before the engine sees them. `token_losses` computes
the same loss from logprobs, for metrics. Always true: only sampled tokens count.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hermes_rl.core.errors import ConfigError
from hermes_rl.extensions import OBJECTIVES
from hermes_rl.training.engines.protocol import Example
from hermes_rl.training.loss import importance_ratios, sampled_mask

Clip = tuple[float, float]


class Objective(Protocol):
    """`engine_loss` is a loss of the Tinker API; `clips` says whether it uses the clip range."""

    name: str
    engine_loss: str
    clips: bool

    def reshape(self, examples: Sequence[Example]) -> Sequence[Example]:
        """The examples as the engine gets them; their advantages weight each token."""
        ...

    def token_losses(self, example: Example, logprobs: NDArray[np.float32], clip: Clip) -> NDArray[np.float64]:
        """Per-target loss. `logprobs` are the current ones."""
        ...


class ImportanceSampling:
    name = engine_loss = "importance_sampling"
    clips = False

    def reshape(self, examples: Sequence[Example]) -> Sequence[Example]:
        return examples

    def token_losses(self, example: Example, logprobs: NDArray[np.float32], clip: Clip) -> NDArray[np.float64]:
        sampled, ratio = sampled_mask(example), importance_ratios(example, logprobs)
        advantages, current = example.advantages.astype(np.float64), np.where(sampled, logprobs, 0.0)
        return np.where(sampled, -self.objective(ratio, advantages, current, clip), 0.0)

    def objective(
        self, ratio: NDArray[np.float64], advantages: NDArray[np.float64], logprobs: NDArray[np.floating], clip: Clip
    ) -> NDArray[np.float64]:
        """To be maximised, by token."""
        return ratio * advantages


class PPO(ImportanceSampling):
    name = engine_loss = "ppo"
    clips = True

    def objective(
        self, ratio: NDArray[np.float64], advantages: NDArray[np.float64], logprobs: NDArray[np.floating], clip: Clip
    ) -> NDArray[np.float64]:
        return np.asarray(np.minimum(ratio * advantages, np.clip(ratio, *clip) * advantages))


class CISPO(ImportanceSampling):
    name = engine_loss = "cispo"
    clips = True

    def objective(
        self, ratio: NDArray[np.float64], advantages: NDArray[np.float64], logprobs: NDArray[np.floating], clip: Clip
    ) -> NDArray[np.float64]:
        # The gradient flows through the logprob only; the clipped ratio is a constant weight.
        return np.asarray(np.clip(ratio, *clip) * advantages * logprobs)


def get_objective(name: str) -> Objective:
    """A built-in objective, an installed one, or `module:Class`; ConfigError for anything else."""
    made = OBJECTIVES.resolve(name)
    objective: Objective = made() if isinstance(made, type) else made
    if not all(hasattr(objective, attribute) for attribute in ("engine_loss", "clips", "reshape", "token_losses")):
        raise ConfigError(f"{name} is not an objective: it needs engine_loss, clips, reshape and token_losses")
    return objective


def total_loss(
    objective: Objective, examples: Sequence[Example], logprobs: Sequence[NDArray[np.float32]], clip: Clip
) -> float:
    """The sum over all tokens, which hosted Tinker reports as `loss:sum`."""
    pairs = zip(examples, logprobs, strict=True)
    return float(sum(objective.token_losses(example, current, clip).sum() for example, current in pairs))
