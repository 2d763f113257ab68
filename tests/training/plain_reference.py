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


def advantages_of(values: Listed[float], baseline: str, epsilon: float = 1e-4, sample_std: bool = True) -> list[float]:
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
            squares = sum((one - mean) ** 2 for one in exact)
            spread = math.sqrt(squares / (len(exact) - 1 if sample_std else len(exact))) + epsilon
            results.append(float(value - mean) / (spread if baseline == "mean_std" else 1))
    return results


def turns_of(rollout: Rollout) -> dict[tuple[int, int], int] | None:
    """The turn of each sampled token, by its place (sequence, token); None where the record does not say."""
    places = [
        (number, place)
        for number, sequence in enumerate(rollout.sequences)
        for place, mark in enumerate(sequence.mask)
        if mark
    ]
    if all(rollout.sequences[number].calls for number, _ in places):
        turns = {
            (number, place): max(
                (call.begin, call.call) for call in rollout.sequences[number].calls if call.begin <= place
            )[1]
            for number, place in places
        }
        known = max([rollout.turns_used, *[call.call + 1 for one in rollout.sequences for call in one.calls]])
    else:
        turns, turn = {}, -1
        for number, place in places:
            turn += (number, place - 1) not in turns
            turns[number, place] = turn
        if len(rollout.sequences) != 1 or turn + 1 != rollout.turns_used:
            return None
        known = rollout.turns_used
    return turns if len(rollout.turn_scores) <= known else None


def value_from(rollout: Rollout, turn: int, settings: TrainerSettings) -> float:
    """What a rollout is worth from a turn on: the scores of that turn and later ones, and its outcome."""
    assert rollout.score is not None
    sampled = sum(sum(sequence.mask) for sequence in rollout.sequences)
    turn_scores = rollout.turn_scores[turn:] if settings.per_turn else ()
    return math.fsum([*turn_scores, rollout.score, -settings.length_penalty * sampled / 1000])


def token_advantages(compared: Listed[Rollout], settings: TrainerSettings) -> list[dict[tuple[int, int], float] | None]:
    """For each rollout, what each of its sampled tokens is worth; None where that is not known."""
    worth: list[dict[tuple[int, int], float] | None] = []
    scored_turns = settings.per_turn and any(rollout.turn_scores for rollout in compared)
    for index, rollout in enumerate(compared):
        turns = turns_of(rollout)
        if not scored_turns:
            places = ((n, at) for n, one in enumerate(rollout.sequences) for at, mark in enumerate(one.mask) if mark)
            turns = dict.fromkeys(places, 0)
        worth.append(None)
        if turns is not None:
            by_turn = {
                turn: advantages_of(
                    [value_from(other, turn, settings) for other in compared],
                    settings.advantage,
                    settings.advantage_epsilon,
                    settings.sample_std,
                )[index]
                for turn in set(turns.values())
            }
            worth[-1] = {place: by_turn[turn] for place, turn in turns.items()}
    return worth


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
    trained = trained_rollouts(group, settings, causes)
    silent = group.overrides.get("set_advantage_to_zero") is True
    if silent or not any(value for _, values in trained for value in values.values()):
        causes["groups/zero_signal"] += 1
        return []
    rows = []
    for index, values in trained:
        for place, sequence in enumerate(group.rollouts[index].sequences):
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


def trained_rollouts(
    group: Group, settings: TrainerSettings, causes: Counter[str]
) -> list[tuple[int, dict[tuple[int, int], float]]]:
    """The index of each rollout that is trained on, and what its tokens are worth."""
    compared = []
    for index, rollout in enumerate(group.rollouts):
        if rollout.score is None:
            causes["rollouts/unscored"] += 1
        elif rollout.withheld not in {None, "too_long"}:
            causes["rollouts/withheld"] += 1
        else:
            compared.append(index)
    trained = []
    worth = token_advantages([group.rollouts[index] for index in compared], settings)
    for index, values in zip(compared, worth, strict=True):
        rollout = group.rollouts[index]
        if rollout.withheld is not None:
            causes["rollouts/withheld"] += 1
        elif settings.mask_truncated and rollout.stop_reason in {"length", "context_full", "max_turns"}:
            causes["rollouts/truncated"] += 1
        elif values is None:
            causes["rollouts/unmatched_turns"] += 1
        else:
            trained.append((index, values))
    return trained


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
