"""Items on disk, and which of them a selection removes.

Always true: no I/O here; an item with a reason to be kept is never removed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class ItemKind(StrEnum):
    RUN = "run"
    ENGINE = "engine"
    IMAGE = "image"
    CACHE = "cache"
    LOGS = "logs"
    CI = "ci"
    DATA = "data"
    """Results that cannot be recreated. Listed, never removed."""
    LEFTOVER = "leftover"
    """A removal whose process was killed before it deleted all files."""


@dataclass(frozen=True, slots=True)
class DiskItem:
    """`paths` are removed together. Processes that use the item hold its `locks`."""

    kind: ItemKind
    name: str
    paths: tuple[Path, ...] = ()
    locks: tuple[Path, ...] = ()
    used: Path | None = None
    """The file whose mtime is the last use; otherwise the newest file counts."""
    engine: str | None = None
    """The container engine that has this image."""
    note: str = ""
    keep: str | None = None
    """Why it must not be removed."""
    bytes: int = 0
    links: frozenset[tuple[int, int, int]] = frozenset()
    """Hard-linked files: device, inode, bytes. `bytes` counts each of them once."""
    last_used: float = 0.0

    @property
    def location(self) -> str:
        return str(self.paths[0]) if self.paths else f"{self.engine or 'runs.db'}: {self.name}"


@dataclass(frozen=True, slots=True)
class Selection:
    """All criteria must match; an empty one always does. `older_than` is in seconds since the last use."""

    names: frozenset[str] = frozenset()
    kinds: frozenset[ItemKind] = frozenset()
    older_than: float | None = None

    def matches(self, item: DiskItem, now: float) -> bool:
        return (
            (not self.names or not self.names.isdisjoint({item.name, item.location}))
            and (not self.kinds or item.kind in self.kinds)
            and (self.older_than is None or now - item.last_used >= self.older_than)
        )


@dataclass(frozen=True, slots=True)
class CleanupPlan:
    """`kept` was selected too, but has a reason to be kept."""

    remove: list[DiskItem]
    kept: list[DiskItem]


def plan(items: Sequence[DiskItem], selection: Selection, now: float) -> CleanupPlan:
    """Removing a run removes its logs too. Leftovers are always removed: that was confirmed before."""
    chosen = [item for item in items if item.kind is ItemKind.LEFTOVER or selection.matches(item, now)]
    runs = {item.name for item in chosen if item.kind is ItemKind.RUN and not item.keep}
    chosen += [item for item in items if item.kind is ItemKind.LOGS and item.name in runs and item not in chosen]
    return CleanupPlan([item for item in chosen if not item.keep], [item for item in chosen if item.keep])


def disk_bytes(items: Iterable[DiskItem]) -> int:
    """Total bytes; a file that several items share counts once."""
    total = 0
    shared: set[tuple[int, int, int]] = set()
    for item in items:
        total += item.bytes - sum(size for _, _, size in item.links)
        shared |= item.links
    return total + sum(size for _, _, size in shared)
