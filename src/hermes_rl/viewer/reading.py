"""Reading one group or one rollout from where it lies, by the row that an index has of it.

Always true: of a large line only the bytes of that rollout are read; a source that has changed under its index is a
ChangedError and never another rollout.
"""

from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

from hermes_rl import jsontext
from hermes_rl.store.codec import GroupView, decode, open_group
from hermes_rl.store.database.reading import StoreReader
from hermes_rl.store.parts import BadGroupError
from hermes_rl.store.records import record_of
from hermes_rl.viewer import lenient, scanning
from hermes_rl.viewer.index.asking import GroupRow, RolloutRow
from hermes_rl.viewer.sources.lines import DERIVED, LARGE, LINE_LIMIT, SEQUENCES, read_part
from hermes_rl.viewer.sources.source import Source
from hermes_rl.viewer.sources.stored import GONE, rollout_of, sequences_of

PIECE = 2**20
NOT_ABOUT = {name.decode() for name in DERIVED}
CHANGED = "the file has changed since it was indexed"


class ChangedError(Exception):
    """What is there is not what the index was made of."""


class Readers:
    """The open stores, one reader each."""

    def __init__(self) -> None:
        self._readers: dict[str, StoreReader] = {}
        self._lock = Lock()
        # A page of a rollout is several questions about one group.
        self._last: tuple[Any, Any] = (None, None)

    def of(self, address: str) -> StoreReader:
        with self._lock:
            return self._readers.setdefault(address, StoreReader(address))

    def close(self) -> None:
        with self._lock:
            for reader in self._readers.values():
                reader.close()
            self._readers.clear()

    def about(self, source: Source, group: GroupRow) -> dict[str, Any]:
        """The group without its rollouts."""
        if source.store is not None:
            view = self._view(source.store, group.n)
            return {**view.group, **view.item}
        if group.length <= LARGE:
            return {name: value for name, value in self._record(source, group).items() if name not in NOT_ABOUT}
        raw = _part(source, group.offset, min(group.length, LINE_LIMIT))
        try:
            kept, left = scanning.without(raw, 0, DERIVED)
            return dict(lenient.loads(kept)) if b"rollouts" in left else {}
        except (ValueError, TypeError) as error:
            raise ChangedError(str(error)) from error

    def rollout(self, source: Source, group: GroupRow, row: RolloutRow, *, sequences: bool = False) -> dict[str, Any]:
        """The rollout as its record has it; its sequences only when they are asked for."""
        if source.store is not None:
            view = self._view(source.store, row.group)
            try:
                said = rollout_of(view, row.position)
                return said | ({"sequences": sequences_of(view, row.position)} if sequences else {})
            except (BadGroupError, IndexError) as error:
                raise ChangedError(str(error)) from error
        if row.offset is None:
            said = _member(self._record(source, group), row)
            return said if sequences else {name: value for name, value in said.items() if name != "sequences"}
        raw = _own(source, row)
        try:
            kept, left = scanning.without(raw, 0, SEQUENCES)
            said = dict(lenient.loads(kept))
            if sequences and b"sequences" in left:
                said["sequences"] = lenient.loads(left[b"sequences"].of(raw))
        except (ValueError, TypeError) as error:
            raise ChangedError(str(error)) from error
        return said

    def raw_rollout(self, source: Source, group: GroupRow, row: RolloutRow) -> bytes:
        if row.offset is not None:
            return _own(source, row)
        return jsontext.dumps(self.rollout(source, group, row, sequences=True))

    def raw_group(self, source: Source, group: GroupRow) -> Iterator[bytes]:
        """The record of a whole group, in pieces."""
        if source.store is not None:
            data = self._data(source.store, group.n)
            try:
                yield jsontext.dumps(record_of(decode(data))) + b"\n"
            except BadGroupError as error:
                raise ChangedError(str(error)) from error
            return
        for begin in range(0, group.length, PIECE):
            yield _part(source, group.offset + begin, min(PIECE, group.length - begin))

    def _view(self, address: str, place: int) -> GroupView:
        key, kept = self._last
        if key == (address, place) and isinstance(kept, GroupView):
            return kept
        try:
            view = open_group(self._data(address, place))
        except BadGroupError as error:
            raise ChangedError(str(error)) from error
        self._last = ((address, place), view)
        return view

    def _data(self, address: str, place: int) -> bytes:
        data = self.of(address).data(place)
        if data is None:
            raise ChangedError(GONE)
        return data

    def _record(self, source: Source, group: GroupRow) -> dict[str, Any]:
        """A line that is not large, as a value."""
        path = source.file or Path()
        try:
            told = path.stat()
            now = (path, told.st_ino, told.st_mtime_ns, group.offset)
            key, kept = self._last
            if key == now and isinstance(kept, dict):
                return kept
            record = dict(lenient.loads(_part(source, group.offset, group.length)))
        except (OSError, ValueError, TypeError) as error:
            raise ChangedError(CHANGED) from error
        self._last = (now, record)
        return record


def _member(record: dict[str, Any], row: RolloutRow) -> dict[str, Any]:
    if "rollouts" not in record:
        return record
    rollouts = lenient.sequence(record["rollouts"])
    if row.position >= len(rollouts):
        raise ChangedError(CHANGED)
    return dict(lenient.mapping(rollouts[row.position]))


def _own(source: Source, row: RolloutRow) -> bytes:
    raw = _part(source, row.offset or 0, row.length or 0)
    if not raw.startswith(b"{") or not raw.endswith(b"}"):
        raise ChangedError(CHANGED)
    return raw


def _part(source: Source, offset: int, length: int) -> bytes:
    try:
        return read_part(source.file or Path(), offset, length)
    except (OSError, ValueError) as error:
        raise ChangedError(str(error)) from error
