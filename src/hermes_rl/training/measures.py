"""The metrics of one step, by the third seed's names and some of our own.

Always true: every value is a finite float, and what has none is absent; logprobs are those of sampled tokens, of all of
them and of nothing else; rewards are of all rollouts that were scored and not withheld, so those of groups without a
signal count too.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hermes_rl.training.batch import LeftOut, Outcome, TrainingBatch
from hermes_rl.training.engine import Example
from hermes_rl.training.objective import ratios, sampled, total_loss
from hermes_rl.training.settings import Loss, TrainerSettings

FIGURES: Mapping[str, Callable[[Sequence[float]], float]] = {"mean": np.mean, "std": np.std, "min": min, "max": max}


def batch_measures(batch: TrainingBatch) -> dict[str, float]:
    """Of a batch before it is trained on, also of one of which nothing is. An advantage is a sequence's mean."""
    sizes = [len(example.tokens) + 1 for example in batch.examples]
    worth = [example.advantages[sampled(example)].mean(dtype=np.float64) for example in batch.examples]
    return _finite(
        {
            **_rewards(batch.outcomes),
            **_summary("advantages", worth, "mean", "std"),
            **_summary("staleness", [origin.staleness for origin in batch.origins], "mean", "max"),
            **_summary("turns", [outcome.turns for outcome in batch.outcomes], "mean"),
            **_summary("sequences/tokens", sizes, "mean", "max"),
            **{str(cause): batch.left_out.get(cause, 0) for cause in LeftOut},
            "groups/total": batch.groups,
            "groups/used": batch.groups_used,
            "rollouts/scored": len(batch.outcomes),
            "sequences/used": len(batch.examples),
            "tokens/trained": sum(int(sampled(example).sum()) for example in batch.examples),
            "tokens/total": sum(sizes),
        }
    )


def step_measures(
    batch: TrainingBatch,
    submitted: Sequence[Example],
    logprobs: Sequence[NDArray[np.float32]],
    settings: TrainerSettings,
    learning_rate: float,
    reference: Sequence[NDArray[np.float32]] | None = None,
) -> dict[str, float]:
    """Of a step that was taken on a batch.

    `submitted` are its examples as the engine was given them, and `logprobs` those of their targets just before the
    step; `reference` those that a KL penalty was computed from. KL divergences are from what sampled, by two
    estimators: k1 is unbiased and noisy, k3 unbiased too and never negative.
    """
    clip = (settings.clip_low, settings.clip_high)
    drawn = _joined(batch.examples, [example.logprobs for example in batch.examples])
    now = _joined(batch.examples, logprobs)
    ratio = _joined(batch.examples, map(ratios, batch.examples, logprobs))
    with np.errstate(all="ignore"):
        loss = total_loss(settings.loss, submitted, logprobs, clip)
        measures = {
            "train/loss": loss,
            "train/loss_per_token": loss / len(drawn),
            "train/learning_rate": learning_rate,
            "logprobs/mean": drawn.mean(),
            "logprobs/mean_training": now.mean(),
            "logprobs/diff": (drawn - now).mean(),
            "logprobs/diff_max": np.abs(drawn - now).max(),
            "entropy": -drawn.mean(),
            "ratio/mean": ratio.mean(),
            "ratio/max": ratio.max(),
            **_divergence("kl/sample_train", drawn, now),
        }
        if settings.loss is not Loss.IMPORTANCE_SAMPLING:
            seen = _joined(submitted, map(ratios, submitted, logprobs))
            measures["ratio/clipped"] = ((seen < clip[0]) | (seen > clip[1])).mean()
        if settings.max_importance_weight is not None:
            measures["ratio/truncated"] = (ratio > settings.max_importance_weight).mean()
        if reference is not None:
            measures |= _divergence("kl/reference", drawn, _joined(batch.examples, reference))
        return _finite(measures)


def _rewards(outcomes: Sequence[Outcome]) -> dict[str, float]:
    parts: dict[str, list[float]] = defaultdict(list)
    by_environment: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        by_environment[outcome.environment].append(outcome.score)
        for name, value in outcome.components.items():
            parts[f"reward/component/{name}"].append(value)
    measures = _summary("reward", [outcome.score for outcome in outcomes], "mean", "std", "min", "max")
    for name, values in parts.items():
        measures[name] = _mean(values)
    if len(by_environment) > 1:
        for name, values in by_environment.items():
            measures[f"reward/environment/{name}"] = _mean(values)
    return measures


def _divergence(name: str, drawn: NDArray[np.float64], other: NDArray[np.float64]) -> dict[str, float]:
    """Of the distribution drawn from, from another one."""
    apart = drawn - other
    return {f"{name}_k1": float(apart.mean()), f"{name}_k3": float((np.expm1(-apart) + apart).mean())}


def _joined(examples: Sequence[Example], columns: Iterable[NDArray[np.floating]]) -> NDArray[np.float64]:
    """What columns have at the sampled tokens of all examples."""
    pairs = zip(examples, columns, strict=True)
    return np.concatenate([np.asarray(column, np.float64)[sampled(example)] for example, column in pairs])


def _summary(name: str, values: Sequence[float], *kinds: str) -> dict[str, float]:
    if not values:
        return {}
    with np.errstate(all="ignore"):
        return {f"{name}/{kind}": float(FIGURES[kind](values)) for kind in kinds}


def _mean(values: Sequence[float]) -> float:
    with np.errstate(all="ignore"):
        return float(np.mean(values))


def _finite(measures: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in measures.items() if math.isfinite(value)}
