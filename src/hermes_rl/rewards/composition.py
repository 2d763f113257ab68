"""Combines several rewards into a weighted sum, clamped to a range.

The result is finite and within the range. Components and weights must have the same names.
"""

import math
from collections.abc import Mapping
from numbers import Real

from hermes_rl.core.errors import VerifierError
from hermes_rl.core.trajectory import Reward


def weighted(
    components: Mapping[str, float],
    weights: Mapping[str, float],
    *,
    clamp: tuple[float, float] | None = (0.0, 1.0),
) -> Reward:
    """The weighted sum of the components, clamped; the Reward also holds the unweighted components.

    Weights need not add up to 1: a bonus can exceed the range and is clamped, and a negative weight is a penalty.
    """
    _check_names(components, weights)
    parts = {name: _finite("component", name, value) for name, value in components.items()}
    factors = {name: _finite("weight", name, value) for name, value in weights.items()}
    # fsum: the score must not depend on the order of the components.
    total = _finite("sum of", "the weighted components", math.fsum(parts[name] * factors[name] for name in parts))
    if clamp is not None:
        low, high = clamp
        if not low <= high:
            raise VerifierError("clamp", f"clamp is (lowest, highest), got {clamp!r}")
        total = min(max(total, low), high)
    return Reward(total, parts)


def _check_names(components: Mapping[str, float], weights: Mapping[str, float]) -> None:
    if not components:
        raise VerifierError("weights", "a weighted reward needs at least one component")
    without_weight = sorted(components.keys() - weights.keys())
    without_value = sorted(weights.keys() - components.keys())
    if without_weight or without_value:
        problems = [f"no weight for {', '.join(without_weight)}"] if without_weight else []
        problems += [f"no component {', '.join(without_value)}"] if without_value else []
        raise VerifierError("weights", f"components and weights must have the same names: {'; '.join(problems)}")


def _finite(what: str, name: str, value: object) -> float:
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise VerifierError("not_finite", f"the {what} {name} is {value!r}; it must be a finite number")
    return number
