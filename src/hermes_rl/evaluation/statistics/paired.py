"""Paired comparison of two evaluations on their shared items.

The test statistic is the mean over items of the difference of an item's mean scores, second minus first. The test makes
no assumption about the distribution of scores: under the null hypothesis the sign of each difference is random.
"""

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean

from hermes_rl.core.errors import ConfigError
from hermes_rl.evaluation.statistics.intervals import (
    LEVEL,
    Bounds,
    Interval,
    Moments,
    bounded_interval,
    known_bounds,
    widen_to_student_t,
)

MONTE_CARLO_DRAWS = 19_999

_ENUMERATED_ITEMS = 16
_FINEST_LATTICE = 10_000
# About a second of work; above that the signs are sampled with a fixed seed.
_LATTICE_STEPS = 20_000_000
# Sums that differ by less than this, relative to the largest, are equal up to rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class PairedResult:
    """`wins`, `losses` and `ties` count items for the second evaluation; the means are over the shared items.

    `p_value` is two-sided: how often random signs give a mean difference at least as far from 0.
    """

    first_mean: float
    second_mean: float
    difference: Interval
    p_value: float
    method: str
    wins: int
    losses: int
    ties: int
    only_in_first: tuple[str, ...]
    only_in_second: tuple[str, ...]


def paired_test(
    first: Mapping[str, Sequence[float]],
    second: Mapping[str, Sequence[float]],
    *,
    bounds: Bounds | None = None,
    level: float = LEVEL,
    seed: int = 0,
) -> PairedResult:
    """Compare scores by item id; items without a score count as absent."""
    before = {item: scores for item, scores in first.items() if len(scores) > 0}
    after = {item: scores for item, scores in second.items() if len(scores) > 0}
    shared = [item for item in before if item in after]
    if not shared:
        raise ConfigError(
            f"the evaluations have no scored item in common ({len(before)} in the first, {len(after)} in the second); "
            "compare two evaluations of the same environment and items, with the same item_id"
        )
    pairs = [(fmean(before[item]), fmean(after[item])) for item in shared]
    flat = list(itertools.chain.from_iterable([*before[item], *after[item]] for item in shared))
    differences = [_snap_to_zero(late - early) for early, late in pairs]
    single_samples = all(len(before[item]) == len(after[item]) == 1 for item in shared)
    wins, losses = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    if single_samples and set(flat) <= {0.0, 1.0}:
        p_value, method = mcnemar(wins, losses), "exact McNemar"
    else:
        p_value, method = sign_flip(differences, seed=seed)
    return PairedResult(
        first_mean=fmean(early for early, _ in pairs),
        second_mean=fmean(late for _, late in pairs),
        difference=_difference(differences, flat, bounds, level),
        p_value=p_value,
        method=method,
        wins=wins,
        losses=losses,
        ties=len(differences) - wins - losses,
        only_in_first=tuple(item for item in before if item not in after),
        only_in_second=tuple(item for item in after if item not in before),
    )


def mcnemar(wins: int, losses: int) -> float:
    """The exact two-sided test that a win is as likely as a loss."""
    total = wins + losses
    if total == 0:
        return 1.0
    tail = sum(math.comb(total, fewer) for fewer in range(min(wins, losses) + 1))
    return min(1.0, float(Fraction(2 * tail, 2**total)))


def sign_flip(differences: Sequence[float], *, seed: int = 0) -> tuple[float, str]:
    """The two-sided p-value and its method: over all signs where that is feasible, else over random ones."""
    sizes = [abs(difference) for difference in differences if difference != 0]
    if not sizes:
        return 1.0, "exact sign flips"
    observed = abs(math.fsum(differences)) - _ROUNDING * max(sizes)
    lattice = _lattice(sizes)
    if lattice is not None:
        steps, unit = lattice
        return _lattice_p_value(steps, observed / unit), "exact sign flips"
    if len(sizes) <= _ENUMERATED_ITEMS:
        sums = [math.fsum(signed) for signed in itertools.product(*((size, -size) for size in sizes))]
        return sum(abs(total) >= observed for total in sums) / len(sums), "exact sign flips"
    return _random_p_value(sizes, observed, seed), f"{MONTE_CARLO_DRAWS} random sign flips"


def difference_interval(moments: Moments, width: float, level: float) -> tuple[float, float, float]:
    """The interval of a mean difference between scores with a range of `width`, and its effective size."""
    return bounded_interval(moments, (-width, width), max_size=math.inf, level=level)


def _difference(differences: Sequence[float], flat: Sequence[float], bounds: Bounds | None, level: float) -> Interval:
    known = known_bounds(flat, bounds)
    lowest, highest = known or (min(flat), max(flat))
    moments = Moments.of(differences)
    low, high, size = difference_interval(moments, highest - lowest, level)
    if known is None:
        low, high = widen_to_student_t(moments, low, high, level)
    return Interval(
        estimate=moments.mean,
        low=low,
        high=high,
        level=level,
        method="effective size (Korn-Graubard)",
        n_items=len(differences),
        n_samples=len(flat),
        standard_error=moments.standard_error,
        effective_size=size,
    )


def _snap_to_zero(difference: float) -> float:
    """Means of the same scores in another order may differ by rounding; that is a tie."""
    return 0.0 if abs(difference) < 1e-12 else difference


def _lattice(sizes: Sequence[float]) -> tuple[list[int], float] | None:
    """The sizes as multiples of a common unit, if there is one and all sums can be enumerated."""
    exact = {size: Fraction(size).limit_denominator(_FINEST_LATTICE) for size in set(sizes)}
    if any(abs(float(fraction) - size) > 1e-12 * max(1.0, size) for size, fraction in exact.items()):
        return None
    denominator = math.lcm(*(fraction.denominator for fraction in exact.values()))
    steps = [int(exact[size] * denominator) for size in sizes]
    divisor = math.gcd(*steps)
    steps = [step // divisor for step in steps]
    if sum(steps) * len(steps) > _LATTICE_STEPS:
        return None
    return steps, divisor / denominator


def _lattice_p_value(steps: Sequence[int], observed: float) -> float:
    """The probability of a sum at least as far from 0, from the exact distribution of the sum of positive steps."""
    probabilities = [1.0]
    for step in steps:
        gap = [0.0] * step
        probabilities = [(a + b) / 2 for a, b in zip(probabilities + gap, gap + probabilities, strict=True)]
    total = sum(steps)
    return min(1.0, math.fsum(p for plus, p in enumerate(probabilities) if abs(2 * plus - total) >= observed))


def _random_p_value(sizes: Sequence[float], observed: float, seed: int) -> float:
    """The observed signs count as one more draw, so that the test is valid."""
    generator = random.Random(seed)
    # One random byte gives the signs of eight sizes at once.
    tables = [
        [math.fsum(size if byte >> bit & 1 else -size for bit, size in enumerate(block)) for byte in range(256)]
        for block in (sizes[start : start + 8] for start in range(0, len(sizes), 8))
    ]
    reached = sum(
        abs(sum(table[byte] for table, byte in zip(tables, generator.randbytes(len(tables)), strict=True))) >= observed
        for _ in range(MONTE_CARLO_DRAWS)
    )
    return (reached + 1) / (MONTE_CARLO_DRAWS + 1)
