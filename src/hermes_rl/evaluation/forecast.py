"""What a sample of rollouts says about a training run before it starts: signal, tokens, time and cost.

A group trains only if its scores differ. The scores that an item gives are modelled as draws from a distribution of
the item's own; these follow a Dirichlet around the pooled scores. Its concentration and the weights of the items are
drawn from what the sample allows, so that a small sample gives wide intervals. docs/training.md has the formulae and
the measured coverage.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

from hermes_rl.core.tolerance import passes
from hermes_rl.core.trajectory import Group, Rollout, StopReason
from hermes_rl.evaluation.statistics.intervals import mean_interval

LEVEL = 0.8
GROUP_SIZES = (4, 8, 16, 32)
# Draws of the posterior; the ends of an 80% interval move by less than 0.01 with more.
DRAWS = 400
# From items that always give the same score (0.02) to items that are all alike (500).
_CONCENTRATIONS: tuple[float, ...] = tuple(0.02 * 25_000.0 ** (place / 24) for place in range(25))
# Scores that differ less than this are one score.
_DIGITS = 9
_UNSEEN = math.nan
# Groups with signal after which a run is expected to have begun to learn.
SIGNAL_GROUPS = 32
ENOUGH_SIGNAL, LITTLE_SIGNAL = 0.2, 0.1
MANY_UNSCORED, MANY_CUT_OFF = 0.1, 0.2
_CUT_OFF = {
    StopReason.MAX_TURNS: "the turn limit (--env.max_agent_turns)",
    StopReason.LENGTH: "the token limit of a turn (--env.max_token_length)",
    StopReason.CONTEXT_FULL: "a full context (--env.compaction drop_results, or fewer turns)",
}


class Range(NamedTuple):
    """An estimate and the interval that holds the observed value in four of five runs."""

    estimate: float
    low: float
    high: float

    def holds(self, observed: float) -> bool:
        return self.low <= observed <= self.high


_CERTAIN = Range(1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The run that is forecast."""

    group_size: int
    batch_size: int
    steps: int
    drops_equal: bool = True
    """Groups with equal scores are dropped before a batch (`ensure_scores_are_not_same`), and others made instead."""
    prompt_price: float = 0.0
    completion_price: float = 0.0

    @property
    def groups_per_step(self) -> float:
        return self.batch_size / self.group_size


@dataclass(frozen=True, slots=True)
class Forecast:
    items: int
    rollouts: int
    plan: RunPlan
    pass_rate: Range | None
    signal: Mapping[int, Range]
    """The share of groups whose scores differ, by group size, over the steps of the plan."""
    never_solved: float
    always_solved: float
    """Shares of the sampled items."""
    rollout_tokens: Range
    step_tokens: Range
    """Tokens that are trained on, as `tokens/total` of a training step counts them."""
    rollout_seconds: Range
    step_seconds: Range
    """Sampling alone, with as many rollouts in flight as in the sample."""
    steps_to_signal: Range
    cost: Range
    unscored: float
    verdict: str
    reasons: tuple[str, ...]
    advice: tuple[str, ...]

    @property
    def zero_signal(self) -> Range:
        share = self.signal[self.plan.group_size]
        return Range(1 - share.estimate, 1 - share.high, 1 - share.low)


def forecast(
    groups: Sequence[Group], plan: RunPlan, *, seconds: float, pass_score: float = 1.0, seed: int = 0
) -> Forecast:
    """The forecast from groups of rollouts; `seconds` is how long sampling them took."""
    rng = Random(seed)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    scored = [[rollout.score for rollout in group.rollouts if rollout.score is not None] for group in groups]
    known = [scores for scores in scored if scores]
    if not known:
        raise ValueError("no rollout has a score")
    sizes = sorted({*GROUP_SIZES, plan.group_size})
    shares = signal_shares(known, sizes, rng, groups_seen=plan.steps * plan.groups_per_step)
    passed = mean_interval([[float(passes(score, pass_score)) for score in scores] for scores in known], level=LEVEL)
    tokens = [[float(_tokens(rollout)) for rollout in group.rollouts] for group in groups]
    times = [[rollout.seconds for rollout in group.rollouts] for group in groups]
    own = shares[plan.group_size]
    per_rollout = _mean(tokens, rng)
    per_step = plan.batch_size * seconds / len(rollouts)
    # The mean over a few steps varies as well as its estimate.
    later = _mean(tokens, rng, later=plan.steps * plan.groups_per_step)
    # How many rollouts are made for one that is trained on.
    made = _inverse(own) if plan.drops_equal else _CERTAIN
    unscored = sum(rollout.score is None for rollout in rollouts) / len(rollouts)
    price = fmean(map(_price, rollouts, [plan] * len(rollouts)))
    return Forecast(
        items=len(groups),
        rollouts=len(rollouts),
        plan=plan,
        pass_rate=None if passed is None else Range(passed.estimate, passed.low, passed.high),
        signal=shares,
        never_solved=sum(not passes(max(scores), pass_score) for scores in known) / len(known),
        always_solved=sum(passes(min(scores), pass_score) for scores in known) / len(known),
        rollout_tokens=per_rollout,
        step_tokens=_times(later, _CERTAIN if plan.drops_equal else own, plan.batch_size),
        rollout_seconds=_mean(times, rng),
        step_seconds=_times(_spread(times, rng), made, per_step),
        steps_to_signal=_steps_to_signal(own, plan),
        cost=_times(_relative(later), made, price * plan.steps * plan.batch_size),
        unscored=unscored,
        **_judged(known, shares, plan, unscored, rollouts),
    )


def signal_shares(
    scores: Sequence[Sequence[float]], sizes: Sequence[int], rng: Random, *, groups_seen: float
) -> dict[int, Range]:
    """For each group size, the share of groups with different scores among `groups_seen` new ones."""
    counts = [Counter(sorted(round(score, _DIGITS) for score in item)) for item in scores]
    draws: dict[int, list[float]] = {size: [] for size in sizes}
    middle: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(DRAWS):
        pooled = _pooled(counts, rng)
        concentration = _draw_concentration(counts, pooled, rng)
        for size in sizes:
            share = max(1 - equal_scores(pooled, concentration, size), 0.0)
            middle[size].append(share)
            deviation = math.sqrt(share * (1 - share) / max(groups_seen, 1))
            draws[size].append(min(max(rng.gauss(share, deviation), 0.0), 1.0))
    return {size: Range(fmean(middle[size]), *(_quantile(draws[size], tail) for tail in _tails())) for size in sizes}


def equal_scores(pooled: Mapping[float, float], concentration: float, size: int) -> float:
    """The probability that a group of a new item has one score only: a Dirichlet-multinomial's."""
    total = 0.0
    for weight in pooled.values():
        chance: float = 1
        for drawn in range(size):
            chance *= (concentration * weight + drawn) / (concentration + drawn)
        total += chance
    return total


def _pooled(counts: Sequence[Counter[float]], rng: Random) -> dict[float, float]:
    """Shares of the scores, with random weights of the items (the Bayesian bootstrap)."""
    weights = [rng.expovariate(1) for _ in counts]
    seen = {score for count in counts for score in count}
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


def _judged(
    scores: Sequence[Sequence[float]],
    shares: Mapping[int, Range],
    plan: RunPlan,
    unscored: float,
    rollouts: Sequence[Rollout],
) -> dict[str, Any]:
    """The verdict with its reasons, and what to change."""
    own = shares[plan.group_size]
    reasons, advice = [], []
    verdict = "uncertain"
    if own.low >= ENOUGH_SIGNAL:
        verdict = "go"
        reasons.append(f"at least {own.low:.0%} of the groups have different scores")
    elif own.high < LITTLE_SIGNAL:
        verdict = "no-go"
        reasons.append(f"at most {own.high:.0%} of the groups have different scores")
    else:
        reasons.append(f"between {own.low:.0%} and {own.high:.0%} of the groups have different scores")
        advice.append("sample more rollouts with --budget, for narrower intervals")
    if unscored > MANY_UNSCORED:
        verdict = "no-go"
        reasons.append(f"{unscored:.0%} of the rollouts have no score")
        advice.append("fix the failures first: `hermes-rl view` shows them")
    mean, values = fmean(fmean(item) for item in scores), {score for item in scores for score in item}
    if own.estimate < ENOUGH_SIGNAL:
        better = [size for size, share in shares.items() if size > plan.group_size and share.estimate >= ENOUGH_SIGNAL]
        if better:
            advice.append(
                f"a group size of {better[0]} gives signal in {shares[better[0]].estimate:.0%} of the groups "
                f"(--env.group_size {better[0]})"
            )
        easy = mean > fmean((min(values), max(values)))
        advice.append(
            "the items are too easy: use harder ones, or --env.item_sampler by_difficulty"
            if easy
            else "the items are too hard: use easier ones, worked examples in the prompt, or a warm start by SFT"
        )
        if not easy and len(values) <= 2:
            advice.append("only two different scores occur; partial credit would distinguish the failures")
    for stop, what in _CUT_OFF.items():
        share = sum(rollout.stop_reason is stop for rollout in rollouts) / len(rollouts)
        if share > MANY_CUT_OFF:
            advice.append(f"{share:.0%} of the rollouts ended at {what}")
    return {"verdict": verdict, "reasons": tuple(reasons), "advice": tuple(advice)}


def _steps_to_signal(share: Range, plan: RunPlan) -> Range:
    trained = _CERTAIN if plan.drops_equal else share

    def steps(value: float) -> float:
        return math.inf if value <= 0 else math.ceil(SIGNAL_GROUPS / (plan.groups_per_step * value))

    return Range(steps(trained.estimate), steps(trained.high), steps(trained.low))


def _tokens(rollout: Rollout) -> int:
    """Of its sequences, as a training step counts them; else what the endpoint counted for the last conversation."""
    if rollout.sequences:
        return sum(len(sequence.tokens) for sequence in rollout.sequences)
    return (rollout.usage.prompt_tokens or 0) + (rollout.usage.completion_tokens or 0)


def _price(rollout: Rollout, plan: RunPlan) -> float:
    prompt, completion = rollout.usage.prompt_tokens or 0, rollout.usage.completion_tokens or 0
    return (prompt * plan.prompt_price + completion * plan.completion_price) / 1e6


def _mean(items: Sequence[Sequence[float]], rng: Random, later: float = math.inf) -> Range:
    """The mean over items with its interval; with `later`, that of the mean of so many new items."""
    middle = _mean_of(items)
    means = [_mean_of(_resampled(items, rng)) for _ in range(DRAWS)]
    widening = math.sqrt(1 + len(items) / later)
    return Range(middle, *(middle + (_quantile(means, tail) - middle) * widening for tail in _tails()))


def _resampled(items: Sequence[Sequence[float]], rng: Random) -> list[Sequence[float]]:
    return rng.choices(items, k=len(items))


def _mean_of(items: Sequence[Sequence[float]]) -> float:
    return fmean(fmean(item) for item in items)


def _spread(items: Sequence[Sequence[float]], rng: Random) -> Range:
    return _relative(_mean(items, rng))


def _relative(mean: Range) -> Range:
    return Range(1.0, mean.low / mean.estimate, mean.high / mean.estimate) if mean.estimate > 0 else _CERTAIN


def _inverse(share: Range) -> Range:
    return Range(*(1 / value if value > 0 else math.inf for value in (share.estimate, share.high, share.low)))


def _times(first: Range, second: Range, scale: float) -> Range:
    """The product of two that vary on their own, so that their relative deviations add in squares."""
    middle = first.estimate * second.estimate * scale
    if not 0 < middle < math.inf:
        return Range(middle, first.low * second.low * scale, first.high * second.high * scale)
    down = math.hypot(1 - first.low / first.estimate, 1 - second.low / second.estimate)
    up = math.hypot(first.high / first.estimate - 1, second.high / second.estimate - 1)
    return Range(middle, middle * max(1 - down, 0.0), middle * (1 + up))


def _tails() -> tuple[float, float]:
    return (1 - LEVEL) / 2, (1 + LEVEL) / 2


def _quantile(values: Sequence[float], probability: float) -> float:
    ordered = sorted(values)
    place = probability * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
