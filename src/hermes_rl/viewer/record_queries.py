"""Responses about one group or rollout, read from the source on demand.

Always true: only indexed groups and rollouts exist; conversations, texts and tokens are paged.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from hermes_rl.core.errors import HermesRLError
from hermes_rl.viewer.catalog import Catalog, NotFoundError
from hermes_rl.viewer.index import queries
from hermes_rl.viewer.index.queries import IndexedGroup, IndexedRollout
from hermes_rl.viewer.index_cache import IndexCache, IndexProgress, OpenIndex
from hermes_rl.viewer.record_reader import RecordReader, SourceChangedError
from hermes_rl.viewer.responses import conversation, rollout, rows
from hermes_rl.viewer.responses.advantages import group_advantages
from hermes_rl.viewer.sources.source import DEVIATION, AdvantageRule, RecordSource, RunAccess
from hermes_rl.viewer.summaries import tool_counts
from hermes_rl.viewer.token_text import TokenTexts

MAX_CONTRASTED = 64
CONTRAST_BYTES = 16 * 2**20


class RecordQueries:
    def __init__(
        self, catalog: Catalog, indexes: IndexCache, reader: RecordReader, token_texts: TokenTexts, runs: RunAccess
    ) -> None:
        self._catalog = catalog
        self._indexes = indexes
        self._reader = reader
        self._token_texts = token_texts
        self._runs = runs

    def group(self, name: str, group_id: str) -> dict[str, Any]:
        source = self._catalog.source(name)
        with self._indexes.open_index(source) as index:
            group = _find_group(index, group_id)
            members = queries.group_rollouts(index.connection, group.n)
        about = self._reader.group_fields(source, group)
        rule = self._advantage_rule(source)
        advantages = group_advantages(rule, group, members)
        return {
            **rows.group_json(group, members),
            "use": self.uses(source, [group.n]).get(group.n),
            "advantage_rule": rule.text,
            "item": rollout.truncate(about.get("item")),
            "tools": rollout.truncate(about.get("tools")),
            "provenance": rollout.truncate(about.get("provenance")),
            "advantages": {rows.rollout_id(row): advantages[row.n] for row in members if row.n in advantages},
            "rollouts": [rows.rollout_json(row, group) for row in members],
            "rollouts_total": group.rollouts,
            "contrast": rollout.contrast(list(self._contrast_rows(source, group, members))),
        }

    def rollout(self, name: str, rollout_id: str) -> dict[str, Any]:
        source = self._catalog.source(name)
        with self._indexes.open_index(source) as index:
            group, row = _find_rollout(index, rollout_id)
            before, after = (queries.find_rollout(index.connection, row.n + step) for step in (-1, 1))
            members = queries.group_rollouts(index.connection, group.n)
        record = self._reader.rollout(source, group, row, sequences=True)
        neighbours = {
            "previous": rows.rollout_id(before) if before and before.group == row.group else None,
            "next": rows.rollout_id(after) if after and after.group == row.group else None,
        }
        rule = self._advantage_rule(source)
        return (
            rows.rollout_json(row, group)
            | rollout.rollout_detail(record)
            | {
                "advantage": group_advantages(rule, group, members).get(row.n),
                "advantage_rule": rule.text,
                "use": self.uses(source, [group.n]).get(group.n),
                "neighbours": neighbours,
            }
        )

    def messages(self, name: str, rollout_id: str, first: int, limit: int) -> dict[str, Any]:
        return conversation.messages_page(self._read_rollout(name, rollout_id), first, limit)

    def text(self, name: str, rollout_id: str, message: int, part: str, first: int) -> dict[str, Any]:
        piece = conversation.text_chunk(self._read_rollout(name, rollout_id), message, part, first)
        if piece is None:
            raise NotFoundError(f"message {message} has no part {part!r}")
        return piece

    def tokens(self, name: str, rollout_id: str, sequence: int, first: int, limit: int) -> dict[str, Any]:
        source = self._catalog.source(name)
        with self._indexes.open_index(source) as index:
            group, row = _find_rollout(index, rollout_id)
            model = index.facts.get("model")
        record = self._reader.rollout(source, group, row, sequences=True)
        page = rollout.tokens_page(record, sequence, first, limit)
        if page is None:
            raise NotFoundError(f"the rollout has no sequence {sequence}")
        page["pieces"] = self._token_texts.decode(model, page["ids"], source.folder)
        return page

    def rollout_line(self, name: str, rollout_id: str) -> bytes:
        source = self._catalog.source(name)
        with self._indexes.open_index(source) as index:
            group, row = _find_rollout(index, rollout_id)
        return self._reader.raw_rollout(source, group, row) + b"\n"

    def group_line(self, name: str, group_id: str) -> Iterator[bytes]:
        source = self._catalog.source(name)
        with self._indexes.open_index(source) as index:
            group = _find_group(index, group_id)
        return self._reader.raw_group(source, group)

    def uses(self, source: RecordSource, groups: Sequence[int]) -> dict[int, dict[str, Any]]:
        """What became of stored groups: trained in a step, dropped and why, or still queued."""
        if source.store is None or not source.available:
            return {}
        try:
            found = self._reader.store(source.store).uses(groups)
        except HermesRLError:
            return {}
        steps = self._runs.batch_steps(source.run_id) if source.run_id is not None else {}
        return {
            place: {
                "state": use.state,
                "cause": use.cause or None,
                "batch": use.batch,
                "step": steps.get(use.batch) if use.batch is not None else None,
            }
            for place, use in found.items()
        }

    def step_groups(self, source: RecordSource, step: int) -> list[int]:
        """The groups that a training step of a run used."""
        if source.run_id is None or source.store is None or not source.available:
            return []
        batches = [batch for batch, taken in self._runs.batch_steps(source.run_id).items() if taken == step]
        return self._reader.store(source.store).batch_places(batches, queries.MAX_ROWS)

    def _advantage_rule(self, source: RecordSource) -> AdvantageRule:
        return DEVIATION if source.run_id is None else self._runs.advantage(source.run_id)

    def _read_rollout(self, name: str, rollout_id: str) -> dict[str, Any]:
        source = self._catalog.source(name)
        with self._indexes.open_index(source) as index:
            group, row = _find_rollout(index, rollout_id)
        return self._reader.rollout(source, group, row)

    def _contrast_rows(
        self, source: RecordSource, group: IndexedGroup, members: list[IndexedRollout]
    ) -> Iterator[dict[str, Any]]:
        room = CONTRAST_BYTES
        for row in members[:MAX_CONTRASTED]:
            room -= row.length or group.length
            try:
                record = self._reader.rollout(source, group, row) if room > 0 else {}
            except SourceChangedError:
                record = {}
            yield {
                "score": row.score,
                "stop_reason": row.stop_reason,
                "turns": row.turns,
                "length": row.completion_tokens,
                "tools": {name: counted.calls for name, counted in tool_counts(record).items()},
                "components": rollout.as_numbers(record.get("components")),
            }


def _find_group(index: OpenIndex, group_id: str) -> IndexedGroup:
    number = int(group_id) if group_id.isascii() and group_id.isdecimal() and len(group_id) < 15 else None
    group = None if number is None else queries.find_group(index.connection, number)
    if group is None:
        raise NotFoundError(_not_found_message("group", index.progress))
    return group


def _find_rollout(index: OpenIndex, rollout_id: str) -> tuple[IndexedGroup, IndexedRollout]:
    number = rows.parse_rollout_id(rollout_id)
    row = None if number is None else queries.find_rollout(index.connection, number)
    if row is None:
        raise NotFoundError(_not_found_message("rollout", index.progress))
    return _find_group(index, str(row.group)), row


def _not_found_message(what: str, progress: IndexProgress | None) -> str:
    return f"{what} not found" + ("" if progress is None else "; indexing has not finished")
