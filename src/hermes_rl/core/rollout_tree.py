"""Which parts of a group's rollouts are compared with each other, where some branch from others.

Always true: siblings begin at the same turn after the same turns; each turn that a rollout made itself is in exactly
one segment of it; without branches the only siblings are the whole rollouts.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from hermes_rl.core.trajectory import Branch


class Segment(NamedTuple):
    """A stretch of a rollout's own turns, [begin, end) counted from 0, and the rollouts that go through it.

    `end` is None for the last stretch of a rollout.
    """

    rollout: int
    begin: int
    end: int | None
    leaves: tuple[int, ...]


class Siblings(NamedTuple):
    """Segments that begin at the same point. They continue the rollout `after`; None for those from the prompt."""

    after: int | None
    segments: tuple[Segment, ...]


def sibling_segments(branches: Sequence[Branch | None], compared: Collection[int]) -> list[Siblings]:
    """The segments to compare, those from the prompt first and each after what it continues.

    `branches` has an entry for each rollout, in which a rollout branches from an earlier one only; else ValueError.
    `compared` has the numbers of the rollouts whose scores count.
    """
    parents, begins = _normalized(branches)
    leaves = [{number} & set(compared) for number in range(len(branches))]
    for number, parent in reversed(list(enumerate(parents))):
        if parent is not None:
            leaves[parent] |= leaves[number]
    alive = [number for number in range(len(branches)) if leaves[number]]
    points = {
        number: sorted({begins[child] for child in alive if parents[child] == number}) for number in range(len(parents))
    }

    def segment(number: int, begin: int) -> Segment:
        """The stretch of this rollout that begins here: what branches off before its end does not go through it."""
        end = next((point for point in points[number] if point > begin), None)
        left = (child for child in alive if parents[child] == number and (end is None or begins[child] < end))
        return Segment(number, begin, end, tuple(sorted(leaves[number].difference(*(leaves[child] for child in left)))))

    found = [Siblings(None, tuple(segment(number, 0) for number in alive if parents[number] is None))]
    for number, turns in points.items():
        for begin in turns:
            branched = [segment(child, begin) for child in alive if (parents[child], begins[child]) == (number, begin)]
            trunk = segment(number, begin)
            found.append(Siblings(number, (*((trunk,) if trunk.leaves else ()), *branched)))
    return found


def _normalized(branches: Sequence[Branch | None]) -> tuple[list[int | None], list[int]]:
    """The rollout that each one leaves, and its first own turn; the one left made the turn before itself."""
    parents: list[int | None] = []
    begins: list[int] = []
    for number, branch in enumerate(branches):
        parent, begin = (None, 0) if branch is None else (branch.rollout, branch.turn - 1)
        if parent is not None and not (0 <= parent < number and begin >= 0):
            raise ValueError(f"rollout {number} of a group cannot branch from {branch}")
        while parent is not None and begin <= begins[parent]:
            parent = parents[parent]
        parents.append(parent)
        begins.append(begin if parent is not None else 0)
    return parents, begins
