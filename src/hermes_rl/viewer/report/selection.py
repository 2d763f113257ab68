"""Selects the groups of one source for a report: which, in what order, and how much of each.

Always true: contents equal the responses of the viewer's API; no group takes the space of others; every link between
included pages works.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes_rl.core.errors import HermesRLError
from hermes_rl.viewer.catalog import NotFoundError
from hermes_rl.viewer.record_reader import SourceChangedError
from hermes_rl.viewer.report.page import ReportPage, json_member
from hermes_rl.viewer.service import ViewerService

MAX_ROLLOUTS = 64
MAX_MESSAGES = 200
MAX_SEQUENCES = 4
MAX_TOKENS = 2_048
LOGPROB_DIGITS = 4
# A group may take this much even if its share is less: one long conversation is better than none.
MIN_GROUP_BYTES = 2_000_000
# The fields of a group's page that its list row has, too.
ROW_FIELDS = (
    "id", "record_id", "item_id", "title", "draw", "split", "created_at", "scores", "mean", "spread", "failures",
    "withheld", "use",
)  # fmt: skip
READ_ERRORS = (SourceChangedError, NotFoundError, HermesRLError)

Row = dict[str, Any]


@dataclass(slots=True)
class SelectedGroups:
    """List rows by group number. `listed` is their size in bytes."""

    groups: dict[int, Row] = field(default_factory=dict)
    rollouts: dict[int, list[Row]] = field(default_factory=dict)
    sequences: dict[str, int] = field(default_factory=dict)
    """The number of sequences of each rollout, by its id."""
    listed: int = 0

    @property
    def group_rows(self) -> list[Row]:
        return [row for _, row in sorted(self.groups.items())]

    @property
    def rollout_rows(self) -> list[Row]:
        return [row for _, rows in sorted(self.rollouts.items()) for row in rows]


@dataclass(frozen=True, slots=True)
class _GroupPart:
    """The part of one group that fits."""

    rows: list[Row]
    sequences: dict[str, int]
    pieces: list[bytes]
    bytes: int


def add_groups(
    page: ReportPage, service: ViewerService, name: str, count: int, room: int, on_group: Callable[[int, int], object]
) -> SelectedGroups:
    """Add up to `count` groups of a source to the page, which may grow to `room` bytes with their list rows."""
    held = SelectedGroups()
    chosen = service.spread(name, count)
    for done, group_id in enumerate(bit_reversal_order(chosen)):
        on_group(done, len(chosen))
        left = room - page.size - held.listed
        try:
            group = service.records.group(name, group_id)
        except READ_ERRORS:
            continue
        share = min(left, max(left // (len(chosen) - done), MIN_GROUP_BYTES))
        part = _select_part(service, name, group, share)
        if part.bytes > share or (group["rollouts"] and not part.rows):
            if left < MIN_GROUP_BYTES:
                break
            continue
        listed = {key: group[key] for key in ROW_FIELDS} | {"rollouts": group["rollouts_total"]}
        page.add(*part.pieces, json_member(f"/api/s/{name}/groups/{group_id}", group | {"rollouts": part.rows}))
        held.groups[int(group_id)], held.rollouts[int(group_id)] = listed, part.rows
        held.sequences |= part.sequences
        held.listed += sum(len(json_member("", row)) for row in (listed, *part.rows))
    return held


def add_tokens(page: ReportPage, service: ViewerService, name: str, held: SelectedGroups, room: int) -> None:
    """Add the first tokens of each rollout to the page, until it has `room` bytes."""
    for row in held.rollout_rows:
        for sequence in range(min(held.sequences[row["id"]], MAX_SEQUENCES)):
            try:
                tokens = service.records.tokens(name, row["id"], sequence, 0, MAX_TOKENS)
            except READ_ERRORS:
                break
            tokens["logprobs"] = [
                None if value is None else round(value, LOGPROB_DIGITS) for value in tokens["logprobs"]
            ]
            member = json_member(f"/api/s/{name}/rollouts/{row['id']}/tokens?sequence={sequence}", tokens)
            if page.size + len(member) > room:
                return
            page.add(member)


def bit_reversal_order(ids: Sequence[str]) -> list[str]:
    """Order ids so that every prefix is spread over the whole, and so is what no space is left for."""
    bits = max(len(ids) - 1, 1).bit_length()
    return [group for _, group in sorted((f"{index:0{bits}b}"[::-1], group) for index, group in enumerate(ids))]


def _select_part(service: ViewerService, name: str, group: Row, share: int) -> _GroupPart:
    size = len(json_member("", group)) + len(json_member("", {key: group[key] for key in ROW_FIELDS}))
    included: list[tuple[Row, Row, bytes]] = []
    for row in group["rollouts"][:MAX_ROLLOUTS]:
        try:
            detail = service.records.rollout(name, row["id"])
            messages = json_member(
                f"/api/s/{name}/rollouts/{row['id']}/messages",
                service.records.messages(name, row["id"], 0, MAX_MESSAGES),
            )
        except READ_ERRORS:
            continue
        more = (
            len(messages) + len(json_member(f"/api/s/{name}/rollouts/{row['id']}", detail)) + len(json_member("", row))
        )
        if size + more > share:
            break
        size += more
        included.append((row, detail, messages))
    rows = [row for row, _, _ in included]
    ids = [None, *(row["id"] for row in rows), None]
    pieces: list[bytes] = []
    for index, (row, detail, messages) in enumerate(included):
        neighbours = {"previous": ids[index], "next": ids[index + 2]}
        pieces += [json_member(f"/api/s/{name}/rollouts/{row['id']}", detail | {"neighbours": neighbours}), messages]
    return _GroupPart(rows, {row["id"]: len(detail["sequences"]) for row, detail, _ in included}, pieces, size)
