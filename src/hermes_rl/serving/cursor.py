"""The position of an environment in its stream of draws, as reported to the API.

Every draw below the cursor is stored at the API, so resuming from it leaves no gap, even if the spool's disk is lost.
"""

from collections.abc import Collection, Iterator, Mapping
from itertools import chain

from hermes_rl.api.client.resume_state import ResumeState


class CompletedDraws(Mapping[int, None]):
    """Draw numbers completed earlier: all below `below`, and some above it. Their items are not known."""

    def __init__(self, below: int, above: Collection[int]) -> None:
        self._below = below
        self._above = frozenset(number for number in above if number >= below)

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and (0 <= number < self._below or number in self._above)

    def __getitem__(self, number: int) -> None:
        if number not in self:
            raise KeyError(number)

    def __iter__(self) -> Iterator[int]:
        return chain(range(self._below), sorted(self._above))

    def __len__(self) -> int:
        return self._below + len(self._above)


class DrawCursor:
    """Tracks the draws of one run. Spooled draws count as completed for sampling, but not yet for the API."""

    def __init__(self, state: ResumeState, spooled: Collection[int]) -> None:
        self.past = CompletedDraws(state.cursor or 0, state.done.union(spooled))
        self._next = state.cursor
        self._unfinished: set[int] = set()

    def begin(self, number: int) -> None:
        self._unfinished.add(number)
        self._next = number + 1

    def finish(self, number: int) -> None:
        """Mark a draw as spooled. A cancelled draw is never finished."""
        self._unfinished.discard(number)

    def cursor(self, spooled: Collection[int]) -> int | None:
        """The lowest draw the API does not have; None before the first draw."""
        return min(chain(self._unfinished, spooled), default=self._next)
