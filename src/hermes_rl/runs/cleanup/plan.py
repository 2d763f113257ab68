"""What is on disk, and which of it a selection removes.

Always true: pure; an item with a reason to be kept is never removed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Kind(StrEnum):
    RUN = "run"
    ENGINE = "engine"
    IMAGE = "image"
    CACHE = "cache"
    LOGS = "logs"
    CI = "ci"
    DATA = "data"
    """Results that nothing can make again. Listed, never removed."""
    LEFTOVER = "leftover"
    """Already removed, but the process was killed while it deleted the files."""


@dataclass(frozen=True, slots=True)
class Item:
    """`paths` are removed together. `locks` are held by whoever uses the item."""

    kind: Kind
    name: str
    paths: tuple[Path, ...] = ()
    locks: tuple[Path, ...] = ()
    used: Path | None = None
    """The file whose time is that of the last use; without one, the newest file counts."""
    engine: str | None = None
    """The container engine that has this image."""
    note: str = ""
    keep: str | None = None
    """Why it must not be removed."""
    bytes: int = 0
    links: frozenset[tuple[int, int, int]] = frozenset()
    """Files with several names: device, inode, bytes. `bytes` counts each of them once."""
    last_used: float = 0.0

    @property
    def location(self) -> str:
        return str(self.paths[0]) if self.paths else f"{self.engine or 'runs.db'}: {self.name}"


@dataclass(frozen=True, slots=True)
class Selection:
    """All criteria must hold; an empty one always does. `older_than` is in seconds since the last use."""

    names: frozenset[str] = frozenset()
    kinds: frozenset[Kind] = frozenset()
    older_than: float | None = None

    def holds(self, item: Item, now: float) -> bool:
        return (
            (not self.names or not self.names.isdisjoint({item.name, item.location}))
            and (not self.kinds or item.kind in self.kinds)
            and (self.older_than is None or now - item.last_used >= self.older_than)
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """`kept` was selected too, but has a reason to be kept."""

    remove: list[Item]
    kept: list[Item]


def plan(items: Sequence[Item], selection: Selection, now: float) -> Plan:
    """A run takes its logs along. Leftovers always go: their removal was confirmed before."""
    chosen = [item for item in items if item.kind is Kind.LEFTOVER or selection.holds(item, now)]
    runs = {item.name for item in chosen if item.kind is Kind.RUN and not item.keep}
    chosen += [item for item in items if item.kind is Kind.LOGS and item.name in runs and item not in chosen]
    return Plan([item for item in chosen if not item.keep], [item for item in chosen if item.keep])


def disk_bytes(items: Iterable[Item]) -> int:
    """The total; a file that several items share counts once."""
    total = 0
    shared: set[tuple[int, int, int]] = set()
    for item in items:
        total += item.bytes - sum(size for _, _, size in item.links)
        shared |= item.links
    return total + sum(size for _, _, size in shared)
