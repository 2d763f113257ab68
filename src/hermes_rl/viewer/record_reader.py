"""Reads one group or rollout from its source, located by its row in an index.

Always true: of a large line only the rollout's bytes are read; a source that changed since it was indexed raises
SourceChangedError and never gives another rollout.
"""

from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

from hermes_rl.core import fast_json, json_scanner
from hermes_rl.store.codec import GroupView, decode, open_group
from hermes_rl.store.container import BadGroupError
from hermes_rl.store.database.reader import StoreReader
from hermes_rl.store.records import group_to_record
from hermes_rl.viewer import lenient_json
from hermes_rl.viewer.index.queries import IndexedGroup, IndexedRollout
from hermes_rl.viewer.sources.jsonl import DERIVED, LARGE_LINE, LINE_LIMIT, SEQUENCES, read_part
from hermes_rl.viewer.sources.source import RecordSource
from hermes_rl.viewer.sources.trajectory_db import BYTES_DELETED, rollout_record, sequence_records

CHUNK_BYTES = 2**20
DERIVED_FIELDS = {name.decode() for name in DERIVED}
CHANGED = "the file has changed since it was indexed"


class SourceChangedError(Exception):
    """The source is not what was indexed."""


class RecordReader:
    """Reads from files and from open stores, with one StoreReader each."""

    def __init__(self) -> None:
        self._readers: dict[str, StoreReader] = {}
        self._lock = Lock()
        # The page of a rollout makes several requests for one group.
        self._last: tuple[Any, Any] = (None, None)

    def store(self, address: str) -> StoreReader:
        with self._lock:
            return self._readers.setdefault(address, StoreReader(address))

    def close(self) -> None:
        with self._lock:
            for reader in self._readers.values():
                reader.close()
            self._readers.clear()

    def group_fields(self, source: RecordSource, group: IndexedGroup) -> dict[str, Any]:
        """The group without its rollouts."""
        if source.store is not None:
            view = self._view(source.store, group.n)
            return {**view.group, **view.item}
        if group.length <= LARGE_LINE:
            return {name: value for name, value in self._record(source, group).items() if name not in DERIVED_FIELDS}
        raw = _read_bytes(source, group.offset, min(group.length, LINE_LIMIT))
        try:
            kept, left = json_scanner.split_members(raw, 0, DERIVED)
            return dict(lenient_json.loads(kept)) if b"rollouts" in left else {}
        except (ValueError, TypeError) as error:
            raise SourceChangedError(str(error)) from error

    def rollout(
        self, source: RecordSource, group: IndexedGroup, row: IndexedRollout, *, sequences: bool = False
    ) -> dict[str, Any]:
        """The rollout's record, with its sequences only on request."""
        if source.store is not None:
            view = self._view(source.store, row.group)
            try:
                record = rollout_record(view, row.position)
                return record | ({"sequences": sequence_records(view, row.position)} if sequences else {})
            except (BadGroupError, IndexError) as error:
                raise SourceChangedError(str(error)) from error
        if row.offset is None:
            record = _rollout_at(self._record(source, group), row)
            return record if sequences else {name: value for name, value in record.items() if name != "sequences"}
        raw = _rollout_bytes(source, row)
        try:
            kept, left = json_scanner.split_members(raw, 0, SEQUENCES)
            record = dict(lenient_json.loads(kept))
            if sequences and b"sequences" in left:
                record["sequences"] = lenient_json.loads(left[b"sequences"].slice(raw))
        except (ValueError, TypeError) as error:
            raise SourceChangedError(str(error)) from error
        return record

    def raw_rollout(self, source: RecordSource, group: IndexedGroup, row: IndexedRollout) -> bytes:
        if row.offset is not None:
            return _rollout_bytes(source, row)
        return fast_json.dumps(self.rollout(source, group, row, sequences=True))

    def raw_group(self, source: RecordSource, group: IndexedGroup) -> Iterator[bytes]:
        """The record of a whole group, in chunks."""
        if source.store is not None:
            data = self._data(source.store, group.n)
            try:
                yield fast_json.dumps(group_to_record(decode(data))) + b"\n"
            except BadGroupError as error:
                raise SourceChangedError(str(error)) from error
            return
        for begin in range(0, group.length, CHUNK_BYTES):
            yield _read_bytes(source, group.offset + begin, min(CHUNK_BYTES, group.length - begin))

    def _view(self, address: str, place: int) -> GroupView:
        key, cached = self._last
        if key == (address, place) and isinstance(cached, GroupView):
            return cached
        try:
            view = open_group(self._data(address, place))
        except BadGroupError as error:
            raise SourceChangedError(str(error)) from error
        self._last = ((address, place), view)
        return view

    def _data(self, address: str, place: int) -> bytes:
        data = self.store(address).data(place)
        if data is None:
            raise SourceChangedError(BYTES_DELETED)
        return data

    def _record(self, source: RecordSource, group: IndexedGroup) -> dict[str, Any]:
        """The parsed record of a line that is not large."""
        path = source.file or Path()
        try:
            stat = path.stat()
            wanted = (path, stat.st_ino, stat.st_mtime_ns, group.offset)
            key, cached = self._last
            if key == wanted and isinstance(cached, dict):
                return cached
            record = dict(lenient_json.loads(_read_bytes(source, group.offset, group.length)))
        except (OSError, ValueError, TypeError) as error:
            raise SourceChangedError(CHANGED) from error
        self._last = (wanted, record)
        return record


def _rollout_at(record: dict[str, Any], row: IndexedRollout) -> dict[str, Any]:
    if "rollouts" not in record:
        return record
    rollouts = lenient_json.as_list(record["rollouts"])
    if row.position >= len(rollouts):
        raise SourceChangedError(CHANGED)
    return dict(lenient_json.as_mapping(rollouts[row.position]))


def _rollout_bytes(source: RecordSource, row: IndexedRollout) -> bytes:
    raw = _read_bytes(source, row.offset or 0, row.length or 0)
    if not raw.startswith(b"{") or not raw.endswith(b"}"):
        raise SourceChangedError(CHANGED)
    return raw


def _read_bytes(source: RecordSource, offset: int, length: int) -> bytes:
    try:
        return read_part(source.file or Path(), offset, length)
    except (OSError, ValueError) as error:
        raise SourceChangedError(str(error)) from error
