"""Advantages of a group in which some rollouts branch from others.

Always true: without branches they are those of `group_advantages`; a turn that several rollouts share has one
advantage, in the row of the rollout that made it.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hermes_rl.core.rollout_tree import sibling_segments
from hermes_rl.core.trajectory import Branch
from hermes_rl.training.advantages import Advantage, ScoredTurns, Scores, values_to_go


def tree_advantages(
    compared: Mapping[int, ScoredTurns],
    branches: Sequence[Branch | None],
    advantage: Advantage,
    *,
    per_turn: bool = False,
) -> NDArray[np.float64]:
    """A row for each compared rollout and a column for each turn, as `group_advantages` gives them.

    `branches` has an entry for each rollout of the group. Column t of a row is that of the segment which has turn t; a
    segment's value is the mean over the compared rollouts that go through it, and it is compared with its siblings'.

    An advantage is multiplied by the number of rollouts that its segment stands for: siblings share equally what the
    segment before them has, and those from the prompt have all. So each turn of a conversation has the weight that it
    has in a flat group, however often it was sampled.
    """
    siblings = sibling_segments(branches, compared)
    turns = max((len(each.turn_scores) for each in compared.values()), default=0) if per_turn else 0
    turns = max([turns, *(segment.begin for each in siblings for segment in each.segments)])
    values = {number: _values(each, turns, per_turn=per_turn) for number, each in compared.items()}
    found, weight = np.zeros((len(branches), turns + 1)), np.zeros((len(branches), turns + 1))
    for after, segments in siblings:
        for segment in segments:
            whole = len(compared) if after is None else weight[after, segment.begin - 1]
            if after is not None:
                weight[segment.rollout, : segment.begin] = weight[after, : segment.begin]
            weight[segment.rollout, segment.begin :] = whole / len(segments)
        if after is not None:
            for segment in segments:
                found[segment.rollout, : segment.begin] = found[after, : segment.begin]
        if after is not None and len(segments) == 1:
            [segment] = segments
            found[segment.rollout, segment.begin :] = found[after, segment.begin - 1]
            continue
        worth = np.array([_mean([values[leaf] for leaf in segment.leaves]) for segment in segments])
        columns = [advantage(column) for column in worth.reshape(-1, turns + 1).T]
        for row, segment in zip(np.stack(columns, axis=1), segments, strict=True):
            found[segment.rollout, segment.begin :] = row[segment.begin :]
    return (found * weight)[list(compared)]


def _values(rollout: ScoredTurns, turns: int, *, per_turn: bool) -> Scores:
    return values_to_go(rollout if per_turn else ScoredTurns(rollout.score), turns)


def _mean(values: Sequence[Scores]) -> Scores:
    """The mean, without an overflow of the sum; that of one value is the value."""
    exponent = (len(values) - 1).bit_length()
    return np.asarray(np.ldexp(np.ldexp(values, -exponent).mean(axis=0), exponent))
