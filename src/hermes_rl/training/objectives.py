"""Objectives: the loss that a training step minimises.

An objective gives each sampled token a weight w; the gradient of its loss is the sum of -w * grad(logprob). The
built-in ones use the ratio r to the policy that sampled (the behaviour policy): the token's probability now over its
probability when sampled. An objective of your own is a function from sequences to weights.

Always true: tokens that were not sampled have weight and loss 0; finite inputs give finite outputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hermes_rl.core.errors import ConfigError
from hermes_rl.extensions import OBJECTIVES
from hermes_rl.training.config import RatioLevel, TrainerSettings
from hermes_rl.training.engines.protocol import Example
from hermes_rl.training.loss import sampled_mask

Column: TypeAlias = NDArray[np.float64]

# float32 overflows at exp(88).
MAX_LOG_RATIO = 80.0


@dataclass(frozen=True, slots=True)
class TrainedSequence:
    """One sequence of a step. All arrays have one value per target token.

    `logprobs` are those of the weights in training, `sampling_logprobs` those recorded at sampling. Both, and
    `advantages`, are 0 where nothing was sampled. Sequences with the same `group` answer the same item; sequences with
    the same `group` and `rollout` are parts of one rollout.
    """

    tokens: NDArray[np.int64]
    sampled: NDArray[np.bool_]
    advantages: Column
    logprobs: Column
    sampling_logprobs: Column
    group: int
    rollout: int
    score: float

    @property
    def ratios(self) -> Column:
        """Probability now over probability when sampled; 1 where nothing was sampled."""
        return _exp(self.logprobs - self.sampling_logprobs)


OwnObjective: TypeAlias = Callable[[Sequence[TrainedSequence]], Sequence[NDArray[np.floating]]]


class EngineLoss(NamedTuple):
    """A loss of the Tinker API, with its clip range if it has one."""

    name: str
    clip: tuple[float, float] | None = None


PLAIN_LOSS = EngineLoss("importance_sampling")


class Objective(Protocol):
    @property
    def engine_loss(self) -> EngineLoss | None:
        """The engine's loss with this gradient; None if the step needs a forward pass and weights instead."""
        ...

    def weights(self, sequences: Sequence[TrainedSequence]) -> list[Column]:
        """Per sequence, the weight of each token."""
        ...

    def losses(self, sequences: Sequence[TrainedSequence]) -> list[Column]:
        """Per sequence, the loss of each token."""
        ...

    def ratio_shares(self, sequences: Sequence[TrainedSequence]) -> dict[str, float]:
        """The share of sampled tokens that each limit of the ratio applies to, by metric name."""
        ...


@dataclass(frozen=True, slots=True)
class RatioLimits:
    """How far a ratio may go: the clip range of ppo and cispo, truncation, and the two masks."""

    clip: tuple[float, float] = (0.8, 1.2)
    level: RatioLevel = RatioLevel.TOKEN
    truncation: float | None = None
    band: tuple[float, float] | None = None
    max_probability_change: float | None = None

    def ratios(self, sequence: TrainedSequence) -> Column:
        if self.level == RatioLevel.TOKEN:
            return sequence.ratios
        log_ratios = (sequence.logprobs - sequence.sampling_logprobs)[sequence.sampled]
        return np.where(sequence.sampled, _exp(log_ratios.mean()), 1.0)

    def truncated(self, ratios: Column) -> Column:
        return ratios if self.truncation is None else np.minimum(ratios, self.truncation)

    def kept(self, sequence: TrainedSequence, ratios: Column) -> NDArray[np.bool_]:
        """False for tokens that a mask removes."""
        kept = sequence.sampled.copy()
        if self.band is not None:
            kept &= (ratios >= self.band[0]) & (ratios <= self.band[1])
        if self.max_probability_change is not None:
            change = np.exp(np.minimum(sequence.logprobs, 0.0)) - np.exp(np.minimum(sequence.sampling_logprobs, 0.0))
            # Only tokens that the advantage would push further away.
            kept &= change * np.sign(sequence.advantages) <= self.max_probability_change
        return kept

    @property
    def masks(self) -> bool:
        return self.band is not None or self.max_probability_change is not None


@dataclass(frozen=True, slots=True)
class RatioObjective:
    """Base of the built-in objectives: subclasses say how the ratio becomes a factor of the advantage."""

    limits: RatioLimits
    clips: ClassVar[bool] = False

    @property
    def engine_loss(self) -> EngineLoss | None:
        if self.limits.masks or self.limits.level != RatioLevel.TOKEN:
            return None
        return self._token_loss()

    def weights(self, sequences: Sequence[TrainedSequence]) -> list[Column]:
        return [self._masked(each, self._factors) for each in sequences]

    def losses(self, sequences: Sequence[TrainedSequence]) -> list[Column]:
        return [-self._masked(each, self._values) for each in sequences]

    def ratio_shares(self, sequences: Sequence[TrainedSequence]) -> dict[str, float]:
        limits = self.limits
        ratios = [limits.ratios(each) for each in sequences]
        flat = np.concatenate([row[each.sampled] for each, row in zip(sequences, ratios, strict=True)])
        shares = {}
        if self.clips:
            shares["ratio/clipped"] = ((flat < limits.clip[0]) | (flat > limits.clip[1])).mean()
        if limits.truncation is not None:
            shares["ratio/truncated"] = (flat > limits.truncation).mean()
        if limits.masks:
            kept = sum(int(limits.kept(each, row).sum()) for each, row in zip(sequences, ratios, strict=True))
            shares["ratio/masked"] = 1 - kept / len(flat)
        return {name: float(share) for name, share in shares.items()}

    def _masked(self, sequence: TrainedSequence, function: Callable[[TrainedSequence, Column], Column]) -> Column:
        ratios = self.limits.ratios(sequence)
        kept = self.limits.kept(sequence, ratios)
        return np.where(kept, function(sequence, ratios) * sequence.advantages, 0.0)

    def _token_loss(self) -> EngineLoss | None:
        """The engine's loss without masks, with ratios of single tokens."""
        raise NotImplementedError

    def _factors(self, sequence: TrainedSequence, ratios: Column) -> Column:
        """What the advantage is multiplied with in the gradient."""
        raise NotImplementedError

    def _values(self, sequence: TrainedSequence, ratios: Column) -> Column:
        """What the advantage is multiplied with in the value; minus the loss."""
        return self._factors(sequence, ratios)


class ImportanceSampling(RatioObjective):
    """Loss -min(r, C) * A, where C is the truncation."""

    __slots__ = ()

    def _token_loss(self) -> EngineLoss | None:
        truncation = self.limits.truncation
        # cispo's gradient is clip(r) * A * grad(logprob), which is that of truncated importance sampling.
        return PLAIN_LOSS if truncation is None else EngineLoss("cispo", (0.0, truncation))

    def _factors(self, sequence: TrainedSequence, ratios: Column) -> Column:
        return self.limits.truncated(ratios)


class PPO(RatioObjective):
    """Loss -min(r * A, clip(r) * A), with r truncated: PPO bounds no ratio where the advantage is negative."""

    __slots__ = ()
    clips = True

    def _token_loss(self) -> EngineLoss | None:
        return EngineLoss("ppo", self.limits.clip) if self.limits.truncation is None else None

    def _factors(self, sequence: TrainedSequence, ratios: Column) -> Column:
        low, high = self.limits.clip
        clipped = np.where(sequence.advantages > 0, ratios > high, ratios < low)
        return np.where(clipped, 0.0, self.limits.truncated(ratios))

    def _values(self, sequence: TrainedSequence, ratios: Column) -> Column:
        positive = sequence.advantages > 0
        return np.where(
            positive,
            np.minimum(ratios, self.limits.clip[1]),
            self.limits.truncated(np.maximum(ratios, self.limits.clip[0])),
        )


class CISPO(RatioObjective):
    """Loss -clip(r) * A * logprob, where the clipped ratio is a constant."""

    __slots__ = ()
    clips = True

    def _token_loss(self) -> EngineLoss | None:
        low, high = self.limits.clip
        return EngineLoss("cispo", (low, high if self.limits.truncation is None else min(high, self.limits.truncation)))

    def _factors(self, sequence: TrainedSequence, ratios: Column) -> Column:
        return self.limits.truncated(np.clip(ratios, *self.limits.clip))

    def _values(self, sequence: TrainedSequence, ratios: Column) -> Column:
        return self._factors(sequence, ratios) * sequence.logprobs


class Reinforce(RatioObjective):
    """Loss -A * logprob: no correction for tokens that an older policy sampled."""

    __slots__ = ()

    def _token_loss(self) -> EngineLoss | None:
        return EngineLoss("cispo", (1.0, 1.0))

    def _factors(self, sequence: TrainedSequence, ratios: Column) -> Column:
        return np.ones_like(ratios)

    def _values(self, sequence: TrainedSequence, ratios: Column) -> Column:
        return sequence.logprobs


@dataclass(frozen=True, slots=True)
class FunctionObjective:
    """An objective of your own: a function from the sequences of a step to the weight of each token."""

    name: str
    function: OwnObjective

    @property
    def engine_loss(self) -> EngineLoss | None:
        return None

    def weights(self, sequences: Sequence[TrainedSequence]) -> list[Column]:
        made = [np.asarray(each, np.float64) for each in self.function(sequences)]
        if len(made) != len(sequences):
            raise ConfigError(f"{self.name} returned weights of {len(made)} sequences instead of {len(sequences)}")
        for sequence, weights in zip(sequences, made, strict=True):
            if weights.shape != sequence.sampled.shape:
                raise ConfigError(
                    f"{self.name} returned weights of shape {weights.shape} for {len(sequence.sampled)} tokens"
                )
            if not np.isfinite(weights[sequence.sampled]).all():
                raise ConfigError(f"{self.name} returned non-finite weights")
        return [np.where(each.sampled, weights, 0.0) for each, weights in zip(sequences, made, strict=True)]

    def losses(self, sequences: Sequence[TrainedSequence]) -> list[Column]:
        """The loss -w * r', where r' is the ratio to the weights of this step: 1 before the step."""
        return [-weights for weights in self.weights(sequences)]

    def ratio_shares(self, sequences: Sequence[TrainedSequence]) -> dict[str, float]:
        return {}


def get_objective(settings: TrainerSettings) -> Objective:
    """A built-in objective, an installed one, or `module:function`; ConfigError for anything else."""
    made = OBJECTIVES.resolve(settings.loss)
    if isinstance(made, type) and issubclass(made, RatioObjective):
        return made(
            RatioLimits(
                (settings.clip_low, settings.clip_high),
                settings.ratio_level,
                settings.max_importance_weight,
                settings.ratio_band,
                settings.max_probability_change,
            )
        )
    if not callable(made):
        raise ConfigError(f"{settings.loss} is not an objective: it needs a function from sequences to token weights")
    if changed := settings.changed_ratio_settings:
        raise ConfigError(f"{', '.join(changed)} has no effect on {settings.loss}, which computes the weights itself")
    return FunctionObjective(settings.loss, made)


def trained_sequence(
    example: Example, logprobs: NDArray[np.floating], *, group: int, rollout: int, score: float
) -> TrainedSequence:
    """`logprobs` are those of the weights in training."""
    sampled = sampled_mask(example)
    return TrainedSequence(
        tokens=example.targets,
        sampled=sampled,
        advantages=example.advantages.astype(np.float64),
        logprobs=np.where(sampled, np.asarray(logprobs, np.float64), 0.0),
        sampling_logprobs=example.logprobs.astype(np.float64),
        group=group,
        rollout=rollout,
        score=score,
    )


def _exp(log_ratios: Column | np.floating) -> Column:
    return np.asarray(np.exp(np.minimum(log_ratios, MAX_LOG_RATIO)))
