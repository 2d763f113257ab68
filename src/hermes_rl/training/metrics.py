"""The metrics of one training step: the third seed's names plus additions.

Always true: every value is a finite float, and a metric without one is absent. Logprob metrics cover exactly the
sampled tokens. Reward metrics cover every rollout that was scored and not withheld, including zero-signal groups.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hermes_rl.training.batch import ExclusionReason, RolloutOutcome, TrainingBatch
from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.engines.protocol import Example
from hermes_rl.training.loss import importance_ratios, sampled_mask
from hermes_rl.training.objectives import get_objective, total_loss

STATISTICS: Mapping[str, Callable[[Sequence[float]], float]] = {"mean": np.mean, "std": np.std, "min": min, "max": max}


def batch_metrics(batch: TrainingBatch) -> dict[str, float]:
    """Metrics known before the step, also for a batch without examples. A sequence counts with its mean advantage."""
    sizes = [len(example.tokens) + 1 for example in batch.examples]
    advantages = [example.advantages[sampled_mask(example)].mean(dtype=np.float64) for example in batch.examples]
    return _finite(
        {
            **_rewards(batch.outcomes),
            **_summary("advantages", advantages, "mean", "std"),
            **_summary("staleness", [origin.staleness for origin in batch.origins], "mean", "max"),
            **_summary("turns", [outcome.turns for outcome in batch.outcomes], "mean"),
            **_summary("sequences/tokens", sizes, "mean", "max"),
            **{str(reason): batch.excluded.get(reason, 0) for reason in ExclusionReason},
            "groups/total": batch.groups,
            "groups/used": batch.groups_used,
            "rollouts/scored": len(batch.outcomes),
            "sequences/used": len(batch.examples),
            "tokens/trained": sum(int(sampled_mask(example).sum()) for example in batch.examples),
            "tokens/total": sum(sizes),
        }
    )


def step_metrics(
    batch: TrainingBatch,
    submitted: Sequence[Example],
    logprobs: Sequence[NDArray[np.float32]],
    settings: TrainerSettings,
    learning_rate: float,
    reference: Sequence[NDArray[np.float32]] | None = None,
) -> dict[str, float]:
    """Metrics of a completed step.

    `submitted` are the examples as sent to the engine, `logprobs` those of their targets just before the step, and
    `reference` the logprobs behind the KL penalty. KL is estimated under the sampling policy in two ways: k1 is
    unbiased and noisy, k3 is unbiased and never negative.
    """
    objective, clip = get_objective(settings.loss), (settings.clip_low, settings.clip_high)
    sampling = _at_sampled_tokens(batch.examples, [example.logprobs for example in batch.examples])
    training = _at_sampled_tokens(batch.examples, logprobs)
    ratio = _at_sampled_tokens(batch.examples, map(importance_ratios, batch.examples, logprobs))
    with np.errstate(all="ignore"):
        loss = total_loss(objective, submitted, logprobs, clip)
        metrics = {
            "train/loss": loss,
            "train/loss_per_token": loss / len(sampling),
            "train/learning_rate": learning_rate,
            "logprobs/mean": sampling.mean(),
            "logprobs/mean_training": training.mean(),
            "logprobs/diff": (sampling - training).mean(),
            "logprobs/diff_max": np.abs(sampling - training).max(),
            "entropy": -sampling.mean(),
            "ratio/mean": ratio.mean(),
            "ratio/max": ratio.max(),
            **_kl_estimates("kl/sample_train", sampling, training),
        }
        if objective.clips:
            submitted_ratio = _at_sampled_tokens(submitted, map(importance_ratios, submitted, logprobs))
            metrics["ratio/clipped"] = ((submitted_ratio < clip[0]) | (submitted_ratio > clip[1])).mean()
        if settings.max_importance_weight is not None:
            metrics["ratio/truncated"] = (ratio > settings.max_importance_weight).mean()
        if reference is not None:
            metrics |= _kl_estimates("kl/reference", sampling, _at_sampled_tokens(batch.examples, reference))
        return _finite(metrics)


def _rewards(outcomes: Sequence[RolloutOutcome]) -> dict[str, float]:
    by_component: dict[str, list[float]] = defaultdict(list)
    by_environment: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        by_environment[outcome.environment].append(outcome.score)
        for name, value in outcome.components.items():
            by_component[f"reward/component/{name}"].append(value)
    metrics = _summary("reward", [outcome.score for outcome in outcomes], "mean", "std", "min", "max")
    for name, values in by_component.items():
        metrics[name] = _mean(values)
    if len(by_environment) > 1:
        for name, values in by_environment.items():
            metrics[f"reward/environment/{name}"] = _mean(values)
    return metrics


def _kl_estimates(name: str, sampling: NDArray[np.float64], other: NDArray[np.float64]) -> dict[str, float]:
    """KL(sampling || other)."""
    log_ratio = sampling - other
    return {f"{name}_k1": float(log_ratio.mean()), f"{name}_k3": float((np.expm1(-log_ratio) + log_ratio).mean())}


def _at_sampled_tokens(examples: Sequence[Example], columns: Iterable[NDArray[np.floating]]) -> NDArray[np.float64]:
    pairs = zip(examples, columns, strict=True)
    return np.concatenate([np.asarray(column, np.float64)[sampled_mask(example)] for example, column in pairs])


def _summary(name: str, values: Sequence[float], *kinds: str) -> dict[str, float]:
    if not values:
        return {}
    with np.errstate(all="ignore"):
        return {f"{name}/{kind}": float(STATISTICS[kind](values)) for kind in kinds}


def _mean(values: Sequence[float]) -> float:
    with np.errstate(all="ignore"):
        return float(np.mean(values))


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
