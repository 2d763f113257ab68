"""Quantiles of the Beta and of Student's t distribution, and the exact interval of a proportion.

Agrees with scipy to at least nine digits (tests/evaluation/test_statistics.py). Sizes and degrees of freedom need not
be integers.
"""

import math
from functools import lru_cache
from statistics import NormalDist

_TINY = 1e-300
_EPSILON = 1e-15
_LAST_STEP = 1e-7


def clopper_pearson(successes: float, size: float, level: float) -> tuple[float, float]:
    """The exact interval of a proportion; size and successes may be fractional."""
    tail = (1 - level) / 2
    failures = size - successes
    low = beta_quantile(tail, successes, failures + 1) if successes > 0 else 0.0
    high = 1 - beta_quantile(tail, failures, successes + 1) if failures > 0 else 1.0
    return low, high


@lru_cache(maxsize=4096)
def student_t_quantile(probability: float, degrees: float) -> float:
    """The quantile of Student's t, for a probability above one half."""
    if degrees > 300:
        return _nearly_normal(probability, degrees)
    # t² / (degrees + t²) is Beta(1/2, degrees/2); its complement is more precise for large t.
    tails = 2 * (1 - probability)
    if degrees < 3:
        rest = beta_quantile(tails, degrees / 2, 0.5)
        return math.sqrt(degrees * (1 - rest) / rest)
    share = beta_quantile(1 - tails, 0.5, degrees / 2)
    return math.sqrt(degrees * share / (1 - share))


def beta_quantile(probability: float, a: float, b: float) -> float:
    """The quantile of Beta(a, b)."""
    if not 0 < probability < 1 or a <= 0 or b <= 0:
        raise ValueError(f"beta_quantile({probability}, {a}, {b}): need a probability inside 0..1, and a and b above 0")
    log_beta = _log_beta(a, b)
    # With b >= 1, at least 1/e of the mass lies below the mean, which saves the most expensive CDF evaluation.
    surely_below = b >= 1 and probability < 1 / math.e
    if not surely_below and _cdf(a / (a + b), a, b, log_beta) < probability:
        return 1 - _lower_quantile(1 - probability, b, a, log_beta)
    return _lower_quantile(probability, a, b, log_beta)


def beta_cdf(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function."""
    return _cdf(x, a, b, _log_beta(a, b))


def _lower_quantile(probability: float, a: float, b: float, log_beta: float) -> float:
    """Halley's method in log-log space, where the lower tail is nearly linear, within a shrinking bracket."""
    low, high = 0.0, 1.0
    log_probability = math.log(probability)
    x = min(_guess(probability, a, b, log_beta), a / (a + b))
    for _ in range(200):
        reached = _cdf(x, a, b, log_beta)
        if reached < probability:
            low = x
        else:
            high = x
        step = math.nan
        if reached > 0 and (slope := math.exp(_log_front(x, a, b, log_beta) - math.log1p(-x)) / reached) > 0:
            step = (log_probability - math.log(reached)) / slope
            bend = 1 + step * (a - (b - 1) * x / (1 - x) - slope) / 2
            step /= max(bend, 0.5)
        # Each step triples the correct digits, so after one this small the result is exact.
        if abs(step) < _LAST_STEP * (1 - x):
            return x * math.exp(step)
        following = x * math.exp(step) if abs(step) < 50 else math.nan
        # A comparison with nan is false, so a failed step falls back to bisection.
        if not low < following < high:
            following = (low + high) / 2
        if following in {low, high}:
            return following
        x = following
    return x


def _guess(probability: float, a: float, b: float, log_beta: float) -> float:
    if min(a, b) > 1:
        # Abramowitz and Stegun, 26.5.22.
        z = -NormalDist().inv_cdf(probability)
        over_a, over_b = 1 / (2 * a - 1), 1 / (2 * b - 1)
        h, bend = 2 / (over_a + over_b), (z * z - 3) / 6
        if h + bend > 0:
            w = z * math.sqrt(h + bend) / h - (over_b - over_a) * (bend + 5 / 6 - 2 / (3 * h))
            return a / (a + b * math.exp(min(2 * w, 600.0)))
    # Near 0 the CDF is x^a / (a B(a, b)), so there this is the quantile itself.
    exponent = (math.log(probability) + math.log(a) + log_beta) / a
    return math.exp(min(0.0, max(exponent, -690.0)))


def _nearly_normal(probability: float, degrees: float) -> float:
    """Abramowitz and Stegun, 26.7.5."""
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / degrees**power for power, term in enumerate(terms, start=1))


def _cdf(x: float, a: float, b: float, log_beta: float) -> float:
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    front = math.exp(_log_front(x, a, b, log_beta))
    if x < (a + 1) / (a + b + 2):
        return front * _continued_fraction(x, a, b) / a
    return 1 - front * _continued_fraction(1 - x, b, a) / b


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _log_front(x: float, a: float, b: float, log_beta: float) -> float:
    return a * math.log(x) + b * math.log1p(-x) - log_beta


def _continued_fraction(x: float, a: float, b: float) -> float:
    """Lentz's method; converges in about sqrt(max(a, b)) terms on the side of the mean where it is used."""
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or _TINY)
    total = d
    for term in range(1, 1000 + int(20 * math.sqrt(max(a, b)))):
        twice = a + 2 * term
        even = term * (b - term) * x / ((twice - 1) * twice)
        d = 1 / (1 + even * d or _TINY)
        c = 1 + even / c or _TINY
        total *= d * c
        odd = -(a + term) * (a + b + term) * x / (twice * (twice + 1))
        d = 1 / (1 + odd * d or _TINY)
        c = 1 + odd / c or _TINY
        change = d * c
        total *= change
        if -_EPSILON < change - 1 < _EPSILON:
            break
    return total
