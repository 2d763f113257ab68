"""One group, one rollout, and what was said in it: each read from where it lies when it is asked for.

Always true: what an index does not hold is not there; conversations, texts and tokens come by pages.
"""

from collections.abc import Iterator
from typing import Any

from hermes_rl.viewer.answers import conversation, rollout, rows
from hermes_rl.viewer.catalog import Catalog, NotThereError
from hermes_rl.viewer.described import tools_of
from hermes_rl.viewer.index import asking
from hermes_rl.viewer.index.asking import GroupRow, RolloutRow
from hermes_rl.viewer.keeping import Indexes, Open, Progress
from hermes_rl.viewer.pieces import Pieces
from hermes_rl.viewer.reading import ChangedError, Readers
from hermes_rl.viewer.sources.source import Source

CONTRASTED = 64
CONTRAST_BYTES = 16 * 2**20


class Records:
    def __init__(self, catalog: Catalog, indexes: Indexes, readers: Readers, pieces: Pieces) -> None:
        self._catalog = catalog
        self._indexes = indexes
        self._readers = readers
        self._pieces = pieces

    def group(self, name: str, group_id: str) -> dict[str, Any]:
        source = self._catalog.source(name)
        with self._indexes.reading(source) as index:
            group = _group(index, group_id)
            members = asking.rollouts_of(index.connection, group.n)
        about = self._readers.about(source, group)
        return {
            **rows.group_json(group, members),
            "item": rollout.cut(about.get("item")),
            "tools": rollout.cut(about.get("tools")),
            "provenance": rollout.cut(about.get("provenance")),
            "rollouts": [rows.rollout_json(row, group) for row in members],
            "rollouts_total": group.rollouts,
            "contrast": rollout.contrast(list(self._contrasted(source, group, members))),
        }

    def rollout(self, name: str, rollout_id: str) -> dict[str, Any]:
        source = self._catalog.source(name)
        with self._indexes.reading(source) as index:
            group, row = _rollout(index, rollout_id)
            before, after = (asking.find_rollout(index.connection, row.n + step) for step in (-1, 1))
        said = self._readers.rollout(source, group, row, sequences=True)
        neighbours = {
            "previous": rows.rollout_id(before) if before and before.group == row.group else None,
            "next": rows.rollout_id(after) if after and after.group == row.group else None,
        }
        return rows.rollout_json(row, group) | rollout.rollout_detail(said) | {"neighbours": neighbours}

    def messages(self, name: str, rollout_id: str, first: int, limit: int) -> dict[str, Any]:
        return conversation.messages_page(self._said(name, rollout_id), first, limit)

    def text(self, name: str, rollout_id: str, message: int, part: str, first: int) -> dict[str, Any]:
        piece = conversation.text_piece(self._said(name, rollout_id), message, part, first)
        if piece is None:
            raise NotThereError(f"message {message} has no {part!r}")
        return piece

    def tokens(self, name: str, rollout_id: str, place: int, first: int, limit: int) -> dict[str, Any]:
        source = self._catalog.source(name)
        with self._indexes.reading(source) as index:
            group, row = _rollout(index, rollout_id)
            model = index.facts.get("model")
        said = self._readers.rollout(source, group, row, sequences=True)
        page = rollout.tokens_page(said, place, first, limit)
        if page is None:
            raise NotThereError(f"the rollout has no sequence {place}")
        page["pieces"] = self._pieces.of(model, page["ids"], source.folder)
        return page

    def rollout_line(self, name: str, rollout_id: str) -> bytes:
        source = self._catalog.source(name)
        with self._indexes.reading(source) as index:
            group, row = _rollout(index, rollout_id)
        return self._readers.raw_rollout(source, group, row) + b"\n"

    def group_line(self, name: str, group_id: str) -> Iterator[bytes]:
        source = self._catalog.source(name)
        with self._indexes.reading(source) as index:
            group = _group(index, group_id)
        return self._readers.raw_group(source, group)

    def _said(self, name: str, rollout_id: str) -> dict[str, Any]:
        source = self._catalog.source(name)
        with self._indexes.reading(source) as index:
            group, row = _rollout(index, rollout_id)
        return self._readers.rollout(source, group, row)

    def _contrasted(self, source: Source, group: GroupRow, members: list[RolloutRow]) -> Iterator[dict[str, Any]]:
        room = CONTRAST_BYTES
        for row in members[:CONTRASTED]:
            room -= row.length or group.length
            try:
                said = self._readers.rollout(source, group, row) if room > 0 else {}
            except ChangedError:
                said = {}
            yield {
                "score": row.score,
                "stop_reason": row.stop_reason,
                "turns": row.turns,
                "length": row.completion_tokens,
                "tools": {name: counted.calls for name, counted in tools_of(said).items()},
                "components": rollout.numbers(said.get("components")),
            }


def _group(index: Open, group_id: str) -> GroupRow:
    number = int(group_id) if group_id.isascii() and group_id.isdecimal() and len(group_id) < 15 else None
    group = None if number is None else asking.find_group(index.connection, number)
    if group is None:
        raise NotThereError(_not_yet("group", index.progress))
    return group


def _rollout(index: Open, rollout_id: str) -> tuple[GroupRow, RolloutRow]:
    number = rows.rollout_of_id(rollout_id)
    row = None if number is None else asking.find_rollout(index.connection, number)
    if row is None:
        raise NotThereError(_not_yet("rollout", index.progress))
    return _group(index, str(row.group)), row


def _not_yet(what: str, progress: Progress | None) -> str:
    return f"there is no such {what}" + ("" if progress is None else " in what is indexed so far")
