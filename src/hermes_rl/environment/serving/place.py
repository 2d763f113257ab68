"""Where an environment stands in its stream of draws, and what it tells the API about it.

Always true: every draw below the cursor is with the API, so whoever takes the cursor up leaves no hole, not even when
the disk with the spool is lost.
"""

from collections.abc import Collection, Iterator, Mapping
from itertools import chain

from hermes_rl.api.client.standing import Standing


class Past(Mapping[int, None]):
    """The draws that were made before: all below a number, and some above it. Which items they were is not known."""

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


class Place:
    """Follows the draws of one run. Those in the local spool are past for the stream, and not yet for the API."""

    def __init__(self, standing: Standing, spooled: Collection[int]) -> None:
        self.past = Past(standing.cursor or 0, standing.done.union(spooled))
        self._following = standing.cursor
        self._unfinished: set[int] = set()

    def begin(self, number: int) -> None:
        self._unfinished.add(number)
        self._following = number + 1

    def finish(self, number: int) -> None:
        """The draw's group is in the spool. One that is given up is never finished."""
        self._unfinished.discard(number)

    def cursor(self, spooled: Collection[int]) -> int | None:
        """The lowest draw the API does not have; None before the first."""
        return min(chain(self._unfinished, spooled), default=self._following)
