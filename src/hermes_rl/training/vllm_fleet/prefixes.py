"""Which server has a prompt's beginning in its cache.

Always true: a bounded number of beginnings is remembered, the latest; a version's caches are not another's.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

S = TypeVar("S")

CHUNK = 64
REMEMBERED = 65_536
# Prompts of one environment share their first part with everybody's; only the rest tells conversations apart.
SHARE_THAT_COUNTS = 0.75


class Prefixes(Generic[S]):
    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._holders: OrderedDict[int, S] = OrderedDict()

    def note(self, version: int, ids: Sequence[int], holder: S) -> None:
        for key in _keys(version, ids):
            self._holders[key] = holder
            self._holders.move_to_end(key)
        while len(self._holders) > self._remembered:
            self._holders.popitem(last=False)

    def holder(self, version: int, ids: Sequence[int]) -> S | None:
        """Whoever last computed most of this prompt."""
        found, known = None, 0
        for key in _keys(version, ids):
            if (holder := self._holders.get(key)) is None:
                break
            found, known = holder, known + CHUNK
        return found if known >= SHARE_THAT_COUNTS * len(ids) else None


def _keys(version: int, ids: Sequence[int]) -> Iterator[int]:
    """A number for each whole chunk, together with all before it."""
    key = hash(version)
    for start in range(0, len(ids) - CHUNK + 1, CHUNK):
        key = hash((key, *ids[start : start + CHUNK]))
        yield key
