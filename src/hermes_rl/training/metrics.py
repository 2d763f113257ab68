"""The metrics of one training step: the third seed's names plus additions.

Always true: every value is a finite float, and a metric without one is absent. Logprob metrics cover exactly the
sampled tokens. Reward metrics cover every rollout of the baseline, including zero-signal groups.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hermes_rl.evaluation.audit_gap import audit_gap
from hermes_rl.training.batch import ExclusionReason, RolloutOutcome, TrainingBatch
from hermes_rl.training.loss import sampled_mask
from hermes_rl.training.objectives import Objective, TrainedSequence

STATISTICS: Mapping[str, Callable[[Sequence[float]], float]] = {"mean": np.mean, "std": np.std, "min": min, "max": max}


def batch_metrics(batch: TrainingBatch) -> dict[str, float]:
    """Metrics known before the step, also for a batch without examples. A sequence counts with its mean advantage."""
    sizes = [len(example.tokens) + 1 for example in batch.examples]
    advantages = [example.advantages[sampled_mask(example)].mean(dtype=np.float64) for example in batch.examples]
    return _finite(
        {
            **_rewards(batch.outcomes),
            **_audits(batch.outcomes),
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
    sequences: Sequence[TrainedSequence],
    objective: Objective,
    losses: Sequence[float],
    learning_rate: float,
    reference: Sequence[NDArray[np.float32]] | None = None,
    teacher: Sequence[NDArray[np.float32]] | None = None,
) -> dict[str, float]:
    """Metrics of a completed step.

    `sequences` have the logprobs just before the step, and `losses` is the loss of each substep. `reference` and
    `teacher` have the logprobs behind the KL penalty and of the teacher, in the order of the sequences. KL is estimated
    under the sampling policy in two ways: k1 is unbiased and noisy, k3 is unbiased and never negative.
    """
    sampling = _at_sampled_tokens(sequences, [each.sampling_logprobs for each in sequences])
    training = _at_sampled_tokens(sequences, [each.logprobs for each in sequences])
    ratio = _at_sampled_tokens(sequences, [each.ratios for each in sequences])
    with np.errstate(all="ignore"):
        metrics = {
            "train/loss": np.mean(losses),
            "train/learning_rate": learning_rate,
            "logprobs/mean": sampling.mean(),
            "logprobs/mean_training": training.mean(),
            "logprobs/diff": (sampling - training).mean(),
            "logprobs/diff_max": np.abs(sampling - training).max(),
            "entropy": -sampling.mean(),
            "ratio/mean": ratio.mean(),
            "ratio/max": ratio.max(),
            **_kl_estimates("kl/sample_train", sampling, training),
            **objective.ratio_shares(sequences),
        }
        for name, other in (("kl/reference", reference), ("kl/teacher", teacher)):
            if other is not None:
                metrics |= _kl_estimates(name, sampling, _at_sampled_tokens(sequences, other))
        return _finite(metrics)


def _rewards(outcomes: Sequence[RolloutOutcome]) -> dict[str, float]:
    by_component: dict[str, list[float]] = defaultdict(list)
    by_environment: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        by_environment[outcome.environment].append(outcome.score)
        if outcome.seat is not None:
            by_component[f"reward/seat/{outcome.seat}"].append(outcome.score)
        for name, value in outcome.components.items():
            by_component[f"reward/component/{name}"].append(value)
    metrics = _summary("reward", [outcome.score for outcome in outcomes], "mean", "std", "min", "max")
    for name, values in by_component.items():
        metrics[name] = _mean(values)
    if len(by_environment) > 1:
        for name, values in by_environment.items():
            metrics[f"reward/environment/{name}"] = _mean(values)
    return metrics


def _audits(outcomes: Sequence[RolloutOutcome]) -> dict[str, float]:
    """The gap between trained and audited reward; empty for a batch without audits."""
    audited = [(outcome, outcome.audited) for outcome in outcomes if outcome.audited is not None]
    if not audited:
        return {}
    gaps: dict[int, list[float]] = defaultdict(list)
    for outcome, score in audited:
        gaps[outcome.group].append(outcome.score - score)
    found = audit_gap(gaps.values())
    known = found.rollouts if found else 0
    metrics = {"audit/rollouts": float(known), "audit/errors": float(len(audited) - known)}
    return metrics | ({f"audit/{name}": value for name, value in found.metrics().items()} if found else {})


def _kl_estimates(name: str, sampling: NDArray[np.float64], other: NDArray[np.float64]) -> dict[str, float]:
    """KL(sampling || other)."""
    log_ratio = sampling - other
    return {f"{name}_k1": float(log_ratio.mean()), f"{name}_k3": float((np.expm1(-log_ratio) + log_ratio).mean())}


def _at_sampled_tokens(
    sequences: Sequence[TrainedSequence], columns: Iterable[NDArray[np.floating]]
) -> NDArray[np.float64]:
    pairs = zip(sequences, columns, strict=True)
    return np.concatenate([np.asarray(column, np.float64)[each.sampled] for each, column in pairs])


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
