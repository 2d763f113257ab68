"""What a sample of rollouts says about a training run before it starts: signal, tokens, time, memory and cost.

Every range is where a figure of the planned steps is expected, not only where its mean lies.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from random import Random
from statistics import fmean, stdev
from typing import Any

from hermes_rl.core.tolerance import passes
from hermes_rl.core.trajectory import Group, Rollout, StopReason
from hermes_rl.evaluation.group_signal import item_models, pass_rate, signal_share
from hermes_rl.evaluation.prediction import (
    CERTAIN,
    LEVEL,
    Range,
    inverse,
    mean_prediction,
    plus,
    product,
    relative,
)
from hermes_rl.evaluation.statistics.distributions import clopper_pearson

GROUP_SIZES = (4, 8, 16, 32)
# Groups with signal after which a run is expected to have begun to learn.
SIGNAL_GROUPS = 32
# The sample is divided into so many stretches, to see how the pace varies.
STRETCHES = 5
ENOUGH_SIGNAL, LITTLE_SIGNAL = 0.2, 0.1
MANY_UNSCORED, MANY_CUT_OFF = 0.1, 0.2
_CUT_OFF = {
    StopReason.MAX_TURNS: "the turn limit (--env.max_agent_turns)",
    StopReason.LENGTH: "the token limit of a turn (--env.max_token_length)",
    StopReason.CONTEXT_FULL: "a full context (--env.compaction drop_results, or fewer turns)",
}


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
    optimizer_seconds: float = 0.0
    """What the optimizer adds to the time of a step; 0 leaves it out."""

    @property
    def groups_per_step(self) -> float:
        return self.batch_size / self.group_size


@dataclass(frozen=True, slots=True)
class ItemForecast:
    """What the sample says about one item; `spread` is the standard deviation of its scores."""

    item_id: str
    scores: tuple[float, ...]
    pass_rate: Range
    spread: float | None


@dataclass(frozen=True, slots=True)
class Forecast:
    items: int
    rollouts: int
    plan: RunPlan
    pass_rate: Range
    reward_spread: Range | None
    """The mean over items of the standard deviation of an item's scores; None if no item has two."""
    by_item: tuple[ItemForecast, ...]
    signal: Mapping[int, Range]
    """The share of groups whose scores differ, by group size."""
    never_solved: float
    always_solved: float
    """Shares of the sampled items."""
    rollout_tokens: Range
    longest_tokens: int
    step_tokens: Range
    """Tokens that are trained on, as `tokens/total` of a training step counts them."""
    rollout_seconds: Range
    step_seconds: Range
    """Sampling with as many rollouts in flight as in the sample, and the optimizer's time if the plan has it."""
    steps_to_signal: Range
    cost: Range
    memory_mb: float | None
    """The most that the environment's process took for the sample, without sandboxes; None if it was not measured."""
    unscored: float
    verdict: str
    reasons: tuple[str, ...]
    advice: tuple[str, ...]

    @property
    def zero_signal(self) -> Range:
        share = self.signal[self.plan.group_size]
        return Range(1 - share.estimate, 1 - share.high, 1 - share.low)


def forecast(
    groups: Sequence[Group],
    plan: RunPlan,
    *,
    seconds: float,
    pass_score: float = 1.0,
    memory_mb: float | None = None,
    seed: int = 0,
) -> Forecast:
    """The forecast from groups of rollouts; `seconds` is how long sampling them took."""
    rng = Random(seed)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    # A small environment's items come again.
    scores: dict[str, list[float]] = {group.item_id: [] for group in groups}
    for group in groups:
        scores[group.item_id] += group.scores
    by_item = [_item(item_id, tuple(found), pass_score) for item_id, found in scores.items() if found]
    if not by_item:
        raise ValueError("no rollout has a score")
    known = [item.scores for item in by_item]
    later = plan.steps * plan.groups_per_step
    models = item_models(known, rng)
    shares = {
        size: signal_share(models, size, plan.steps * plan.batch_size / size, rng)
        for size in sorted({*GROUP_SIZES, plan.group_size})
    }
    own = shares[plan.group_size]
    lengths = [[trained_tokens(rollout) for rollout in group.rollouts] for group in groups]
    tokens = mean_prediction(lengths, later)
    times = mean_prediction([[rollout.seconds for rollout in group.rollouts] for group in groups], later)
    spreads = [[item.spread] for item in by_item if item.spread is not None]
    # How many rollouts are made for one that is trained on.
    made = inverse(own) if plan.drops_equal else CERTAIN
    pace = _pace(groups, seconds, later) or product(relative(times), CERTAIN, seconds / len(rollouts))
    unscored = sum(rollout.score is None for rollout in rollouts) / len(rollouts)
    price = fmean(_price(rollout, plan) for rollout in rollouts)
    return Forecast(
        items=len(scores),
        rollouts=len(rollouts),
        plan=plan,
        pass_rate=pass_rate(models, known, pass_score, plan.group_size, later, rng),
        reward_spread=mean_prediction(spreads) if spreads else None,
        by_item=tuple(by_item),
        signal=shares,
        never_solved=sum(not passes(max(scores), pass_score) for scores in known) / len(known),
        always_solved=sum(passes(min(scores), pass_score) for scores in known) / len(known),
        rollout_tokens=tokens,
        longest_tokens=math.ceil(max(max(each) for each in lengths)),
        step_tokens=product(tokens, CERTAIN if plan.drops_equal else own, plan.batch_size),
        rollout_seconds=times,
        step_seconds=plus(product(pace, made, plan.batch_size), plan.optimizer_seconds if seconds else 0.0),
        steps_to_signal=_steps_to_signal(own, plan),
        cost=product(relative(tokens), made, price * plan.steps * plan.batch_size),
        memory_mb=memory_mb,
        unscored=unscored,
        **_judged(known, shares, plan, unscored, rollouts, pass_score),
    )


def trained_tokens(rollout: Rollout) -> float:
    """Of its sequences, as a training step counts them; else estimated from what the endpoint counted.

    An endpoint counts the conversation again in every turn: its mean prompt and all completions are about its length.
    """
    if rollout.sequences:
        return sum(len(sequence.tokens) for sequence in rollout.sequences)
    return (rollout.usage.prompt_tokens or 0) / max(rollout.turns_used, 1) + (rollout.usage.completion_tokens or 0)


def _pace(groups: Sequence[Group], seconds: float, later: float) -> Range | None:
    """Seconds for each rollout while `later` groups are made, by how the pace varied over the sample.

    It varies with the items, and with what else the machine and the endpoint do, which a single rollout does not show.
    None if there are too few groups to tell, or if they do not say when they ended.
    """
    if len(groups) < 2 * STRETCHES or not all(group.created_at for group in groups):
        return None
    made = sorted(groups, key=lambda group: group.created_at)
    ends = [datetime.fromisoformat(group.created_at).timestamp() for group in made]
    before, first = ends[-1] - seconds, 0
    paces: list[list[float]] = []
    for number in range(1, STRETCHES + 1):
        last = round(number * len(made) / STRETCHES)
        rollouts = sum(len(group.rollouts) for group in made[first:last])
        # A clock that was set back would make it negative.
        paces.append([max(ends[last - 1] - before, 0.0) / rollouts])
        before, first = ends[last - 1], last
    mean = relative(mean_prediction(paces, later * STRETCHES / len(made)))
    return product(mean, CERTAIN, seconds / sum(len(group.rollouts) for group in made))


def _item(item_id: str, scores: tuple[float, ...], pass_score: float) -> ItemForecast:
    passed = sum(passes(score, pass_score) for score in scores)
    ends = clopper_pearson(passed, len(scores), LEVEL)
    return ItemForecast(item_id, scores, Range(passed / len(scores), *ends), stdev(scores) if len(scores) > 1 else None)


def _judged(
    scores: Sequence[Sequence[float]],
    shares: Mapping[int, Range],
    plan: RunPlan,
    unscored: float,
    rollouts: Sequence[Rollout],
    pass_score: float,
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
    failed = [rollout for rollout in rollouts if rollout.score is None or not passes(rollout.score, pass_score)]
    for stop, what in _CUT_OFF.items():
        share = sum(rollout.stop_reason is stop for rollout in failed) / len(rollouts)
        if share > MANY_CUT_OFF:
            advice.append(f"{share:.0%} of the rollouts failed at {what}")
    return {"verdict": verdict, "reasons": tuple(reasons), "advice": tuple(advice)}


def _steps_to_signal(share: Range, plan: RunPlan) -> Range:
    trained = CERTAIN if plan.drops_equal else share

    def steps(value: float) -> float:
        return math.inf if value <= 0 else math.ceil(SIGNAL_GROUPS / (plan.groups_per_step * value))

    return Range(steps(trained.estimate), steps(trained.high), steps(trained.low))


def _price(rollout: Rollout, plan: RunPlan) -> float:
    prompt, completion = rollout.usage.prompt_tokens or 0, rollout.usage.completion_tokens or 0
    return (prompt * plan.prompt_price + completion * plan.completion_price) / 1e6
