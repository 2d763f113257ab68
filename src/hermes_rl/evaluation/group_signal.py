"""How many groups of new items will have different scores, and how many of their rollouts will pass, from a sample.

The scores of an item are modelled as draws from a distribution of the item's own; these follow a Dirichlet around the
pooled shares of the scores. Its concentration and the weights of the items are drawn from what the sample allows, so
that a small sample gives wide intervals. docs/forecast.md has the formulae, docs/reports/forecast.md the coverage.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

from hermes_rl.core.tolerance import passes
from hermes_rl.evaluation.prediction import Range, of_draws

# Draws of the posterior; the ends of an 80% interval move by less than 0.01 with more.
DRAWS = 400
# The scatter of more groups than these is small compared with what the sample leaves open.
MOST_GROUPS = 200
# From items that always give the same score (0.02) to items that are all alike (500).
_CONCENTRATIONS: tuple[float, ...] = tuple(0.02 * 25_000.0 ** (place / 24) for place in range(25))
# Scores that differ less than this are one score.
_DIGITS = 9
_UNSEEN = math.nan


@dataclass(frozen=True, slots=True)
class ItemModel:
    """A Dirichlet from which the items' distributions of scores are drawn."""

    shares: Mapping[float, float]
    concentration: float

    def equal_scores(self, size: int) -> float:
        """The probability that a group of a new item has one score only: a Dirichlet-multinomial's."""
        total = 0.0
        for weight in self.shares.values():
            chance: float = 1
            for drawn in range(size):
                chance *= (self.concentration * weight + drawn) / (self.concentration + drawn)
            total += chance
        return total


def item_models(scores: Sequence[Sequence[float]], rng: Random) -> list[ItemModel]:
    """Draws from the posterior, given the scores of each item."""
    counts = [Counter(sorted(round(score, _DIGITS) for score in item)) for item in scores]
    models = []
    for _ in range(DRAWS):
        pooled = _pooled(counts, rng)
        models.append(ItemModel(pooled, _draw_concentration(counts, pooled, rng)))
    return models


def signal_share(models: Sequence[ItemModel], size: int, groups: float, rng: Random) -> Range:
    """The share of groups of `size` with different scores, among so many."""
    shares = [max(1 - model.equal_scores(size), 0.0) for model in models]
    count = _whole(groups)
    return of_draws(fmean(shares), [sum(rng.random() < share for _ in range(count)) / count for share in shares])


def pass_rate(
    models: Sequence[ItemModel],
    scores: Sequence[Sequence[float]],
    pass_score: float,
    size: int,
    groups: float,
    rng: Random,
) -> Range:
    """The share of rollouts that pass, in so many groups of `size`."""
    passed = [[passes(score, pass_score) for score in item] for item in scores]
    # If all scores are alike, one that was never seen is of the other kind.
    unseen = not any(map(any, passed))
    count = _whole(groups)

    def draw(model: ItemModel) -> float:
        share = sum(
            weight
            for score, weight in model.shares.items()
            if (unseen if math.isnan(score) else passes(score, pass_score))
        )
        if not 0 < share < 1:
            return float(share > 0)
        ends = model.concentration * share, model.concentration * (1 - share)
        rates = (rng.betavariate(*ends) for _ in range(count))
        return sum(rng.random() < rate for rate in rates for _ in range(size)) / (count * size)

    return of_draws(fmean(map(fmean, passed)), [draw(model) for model in models])


def _whole(groups: float) -> int:
    return min(max(round(groups), 1), MOST_GROUPS)


def _pooled(counts: Sequence[Counter[float]], rng: Random) -> dict[float, float]:
    """Shares of the scores, with random weights of the items (the Bayesian bootstrap)."""
    weights = [rng.expovariate(1) for _ in counts]
    seen = sorted({score for count in counts for score in count})
    # One item more, which is unknown: the few items with a rare score would else be taken for all there are. If all
    # scores are alike so far, another may still come.
    shares = {score: rng.gammavariate(1 / len(seen), 1) for score in seen if len(seen) > 1}
    if len(seen) == 1:
        shares[_UNSEEN] = rng.gammavariate(0.5, 1)
    total = sum(weights) + sum(shares.values())
    shares = {score: weight / total for score, weight in shares.items()}
    for weight, count in zip(weights, counts, strict=True):
        for score, number in count.items():
            shares[score] = shares.get(score, 0.0) + weight / total * number / count.total()
    return shares


def _draw_concentration(counts: Sequence[Counter[float]], pooled: Mapping[float, float], rng: Random) -> float:
    # Most items have counts that others have too.
    alike = Counter(tuple(count.items()) for count in counts)
    logs = [
        sum(number * _log_likelihood(dict(count), pooled, one) for count, number in alike.items())
        for one in _CONCENTRATIONS
    ]
    top = max(logs)
    return rng.choices(_CONCENTRATIONS, [math.exp(value - top) for value in logs])[0]


def _log_likelihood(count: Mapping[float, int], pooled: Mapping[float, float], concentration: float) -> float:
    found = math.lgamma(concentration) - math.lgamma(concentration + sum(count.values()))
    for score, number in count.items():
        share = concentration * pooled[score]
        found += math.lgamma(share + number) - math.lgamma(share)
    return found
