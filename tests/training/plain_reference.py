"""The objective once more, token by token over decoded groups, in exact fractions and plain loops.

Written from the words of the design alone: it shares no function with what it is held against.
"""

import math
from collections import Counter
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from fractions import Fraction

from hermes_rl.core.trajectory import Group, Rollout, Sampling, Sequence
from hermes_rl.training.config import TrainerSettings


@dataclass
class Row:
    """An example: where it is from, and a tuple (token, target, logprob, advantage, mask) for each position."""

    place: tuple[int, int, int]
    staleness: int
    positions: list[tuple[int, int, float, float, int]]


def advantages_of(values: Listed[float], baseline: str) -> list[float]:
    exact = [Fraction(value) for value in values]
    results = []
    for index, value in enumerate(exact):
        others = exact[:index] + exact[index + 1 :]
        if all(other == value for other in others):
            results.append(0.0)
        elif baseline == "leave_one_out":
            results.append(float(value - sum(others) / len(others)))
        else:
            mean = sum(exact) / len(exact)
            spread = math.sqrt(sum((one - mean) ** 2 for one in exact) / len(exact))
            results.append(float(value - mean) / (spread if baseline == "mean_std" else 1))
    return results


def turns_of(rollout: Rollout) -> list[list[tuple[int, int]]]:
    """The turns, each as the places (sequence, token) that were sampled in it."""
    turns: list[list[tuple[int, int]]] = []
    for number, sequence in enumerate(rollout.sequences):
        speaking = False
        for place, mark in enumerate(sequence.mask):
            if mark and not speaking:
                turns.append([])
            if mark:
                turns[-1].append((number, place))
            speaking = bool(mark)
    return turns


def token_advantages(rollouts: Listed[Rollout], settings: TrainerSettings) -> list[dict[tuple[int, int], float]]:
    """For each rollout, what each of its sampled tokens is worth."""
    turns = [turns_of(rollout) for rollout in rollouts]
    worth: list[dict[tuple[int, int], float]] = [{} for _ in rollouts]
    longest = max((len(one) for one in turns), default=0)
    for turn in range(longest):
        there = [index for index in range(len(rollouts)) if turn < len(turns[index])]
        if not settings.per_turn:
            values = advantages_of([rollout.score or 0.0 for rollout in rollouts], settings.advantage)
            values = [values[index] for index in there]
        else:
            values = advantages_of([to_go(rollouts[index], turn) for index in there], settings.advantage)
        for index, value in zip(there, values, strict=True):
            worth[index].update(dict.fromkeys(turns[index][turn], value))
    return worth


def to_go(rollout: Rollout, turn: int) -> float:
    assert rollout.score is not None
    return math.fsum(rollout.turn_scores[turn:]) if rollout.turn_scores else rollout.score


def expected(groups: Listed[Group], settings: TrainerSettings, version: int) -> tuple[list[Row], Counter[str]]:
    rows: list[Row] = []
    causes: Counter[str] = Counter()
    tokens, full = 0, False
    for number, group in enumerate(groups):
        mine = rows_of(number, group, settings, version, causes)
        size = sum(len(row.positions) + 1 for row in mine)
        limit = settings.max_batch_tokens
        if not mine or limit is None:
            rows += mine
        elif size > limit:
            causes["groups/beyond_batch_tokens"] += 1
        elif full or tokens + size > limit:
            full = True
            causes["groups/beyond_batch_tokens"] += 1
        else:
            rows += mine
            tokens += size
    return rows, causes


def rows_of(number: int, group: Group, settings: TrainerSettings, version: int, causes: Counter[str]) -> list[Row]:
    if group.withheld is not None:
        causes["groups/withheld"] += 1
        return []
    fit = []
    for index, rollout in enumerate(group.rollouts):
        if rollout.score is None:
            causes["rollouts/unscored"] += 1
        elif rollout.withheld is not None:
            causes["rollouts/withheld"] += 1
        elif settings.per_turn and len(rollout.turn_scores) > len(turns_of(rollout)):
            causes["rollouts/unmatched_turns"] += 1
        else:
            fit.append((index, rollout))
    worth = token_advantages([rollout for _, rollout in fit], settings)
    silent = group.overrides.get("set_advantage_to_zero") is True
    if silent or not any(value for values in worth for value in values.values()):
        causes["groups/zero_signal"] += 1
        return []
    rows = []
    for (index, rollout), values in zip(fit, worth, strict=True):
        for place, sequence in enumerate(rollout.sequences):
            cause = why_not(sequence, settings, version)
            if cause:
                causes[f"sequences/{cause}"] += 1
                continue
            positions = []
            for at in range(len(sequence.tokens) - 1):
                mark, logprob = sequence.mask[at + 1], sequence.logprobs[at + 1]
                positions.append(
                    (
                        sequence.tokens[at],
                        sequence.tokens[at + 1],
                        logprob if mark and logprob is not None else 0.0,
                        values[place, at + 1] if mark else 0.0,
                        mark,
                    )
                )
            rows.append(Row((number, index, place), version - oldest(sequence), positions))
    return rows


def why_not(sequence: Sequence, settings: TrainerSettings, version: int) -> str | None:
    if len(sequence.tokens) > settings.max_token_trainer_length:
        return "too_long"
    targets = [place for place in range(1, len(sequence.tokens)) if sequence.mask[place]]
    if not targets:
        return "unsampled"
    if any(sequence.logprobs[place] is None for place in targets):
        return "no_logprobs"
    if any(sequence.versions[place] is None for place in targets):
        return "no_versions"
    if version - oldest(sequence) > settings.max_staleness:
        return "stale"
    return None if fair(sequence.sampling) else "uncorrectable"


def oldest(sequence: Sequence) -> int:
    said = [sequence.versions[place] for place in range(1, len(sequence.tokens)) if sequence.mask[place]]
    return min(version for version in said if version is not None)


def fair(sampling: Sampling) -> bool:
    """Whether every token could be drawn, and the logprobs are of what was drawn from."""
    whole = sampling.top_p in {None, 1.0} and sampling.top_k in {None, -1, 0}
    known = sampling.temperature == 1 or (sampling.temperature > 0 and sampling.logprobs == "processed")
    return whole and known


def loss_of(loss: str, row: Listed[tuple[float, float, float, int]], low: float, high: float) -> float:
    """The sum over (logprob now, logprob when sampled, advantage, mask), each as Tinker's documents define it."""
    total = 0.0
    for now, then, advantage, mark in row:
        if not mark:
            continue
        ratio = math.exp(now - then)
        held = low if ratio < low else min(ratio, high)
        if loss == "importance_sampling":
            total -= ratio * advantage
        elif loss == "ppo":
            total -= min(ratio * advantage, held * advantage)
        elif loss == "cispo":
            total -= held * now * advantage
        else:
            assert loss == "reinforce"
            total -= now * advantage
    return total
