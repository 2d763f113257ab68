"""The groups of one source that a report holds: which, in what order, and how much of each.

Always true: answers are those of the viewer's API; no group takes the room of the others; every link between what is
held leads to something that is held.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes_rl.errors import HermesRLError
from hermes_rl.viewer.catalog import NotThereError
from hermes_rl.viewer.desk import Desk
from hermes_rl.viewer.reading import ChangedError
from hermes_rl.viewer.report.page import Page, answer

ROLLOUTS = 64
MESSAGES = 200
SEQUENCES = 4
TOKENS = 2_048
LOGPROB_DIGITS = 4
# A group may have this much, even where its share of the room is less: one long conversation is better than none.
LEAST_BYTES = 2_000_000
# Of a group's page, what a row of the list says too.
ROW = (
    "id", "record_id", "item_id", "title", "draw", "split", "created_at", "scores", "mean", "spread", "failures",
    "withheld",
)  # fmt: skip
GONE = (ChangedError, NotThereError, HermesRLError)

Row = dict[str, Any]


@dataclass(slots=True)
class Held:
    """Rows of the lists, by the number of the group. `listed` are the bytes that these will take."""

    groups: dict[int, Row] = field(default_factory=dict)
    rollouts: dict[int, list[Row]] = field(default_factory=dict)
    sequences: dict[str, int] = field(default_factory=dict)
    """How many each rollout has, by its id."""
    listed: int = 0

    @property
    def group_rows(self) -> list[Row]:
        return [row for _, row in sorted(self.groups.items())]

    @property
    def rollout_rows(self) -> list[Row]:
        return [row for _, rows in sorted(self.rollouts.items()) for row in rows]


@dataclass(frozen=True, slots=True)
class _Part:
    """As much of one group as fits."""

    rows: list[Row]
    sequences: dict[str, int]
    pieces: list[bytes]
    bytes: int


def hold_groups(
    page: Page, desk: Desk, name: str, count: int, room: int, on_group: Callable[[int, int], object]
) -> Held:
    """Put so many groups of a source on the page, which may grow to `room` bytes with their lists."""
    held = Held()
    chosen = desk.spread(name, count)
    for done, group_id in enumerate(coarse_first(chosen)):
        on_group(done, len(chosen))
        left = room - page.size - held.listed
        try:
            group = desk.records.group(name, group_id)
        except GONE:
            continue
        share = min(left, max(left // (len(chosen) - done), LEAST_BYTES))
        part = _part(desk, name, group, share)
        if part.bytes > share or (group["rollouts"] and not part.rows):
            if left < LEAST_BYTES:
                break
            continue
        listed = {key: group[key] for key in ROW} | {"rollouts": group["rollouts_total"]}
        page.add(*part.pieces, answer(f"/api/s/{name}/groups/{group_id}", group | {"rollouts": part.rows}))
        held.groups[int(group_id)], held.rollouts[int(group_id)] = listed, part.rows
        held.sequences |= part.sequences
        held.listed += sum(len(answer("", row)) for row in (listed, *part.rows))
    return held


def hold_tokens(page: Page, desk: Desk, name: str, held: Held, room: int) -> None:
    """Put the beginning of each rollout's tokens on the page, until it has `room` bytes."""
    for row in held.rollout_rows:
        for place in range(min(held.sequences[row["id"]], SEQUENCES)):
            try:
                told = desk.records.tokens(name, row["id"], place, 0, TOKENS)
            except GONE:
                break
            told["logprobs"] = [None if one is None else round(one, LOGPROB_DIGITS) for one in told["logprobs"]]
            piece = answer(f"/api/s/{name}/rollouts/{row['id']}/tokens?sequence={place}", told)
            if page.size + len(piece) > room:
                return
            page.add(piece)


def coarse_first(ids: Sequence[str]) -> list[str]:
    """In an order whose every beginning is spread over the whole, so that what no room is left for is too."""
    bits = max(len(ids) - 1, 1).bit_length()
    return [one for _, one in sorted((f"{place:0{bits}b}"[::-1], one) for place, one in enumerate(ids))]


def _part(desk: Desk, name: str, group: Row, share: int) -> _Part:
    size = len(answer("", group)) + len(answer("", {key: group[key] for key in ROW}))
    told: list[tuple[Row, Row, bytes]] = []
    for row in group["rollouts"][:ROLLOUTS]:
        try:
            detail = desk.records.rollout(name, row["id"])
            messages = answer(
                f"/api/s/{name}/rollouts/{row['id']}/messages", desk.records.messages(name, row["id"], 0, MESSAGES)
            )
        except GONE:
            continue
        more = len(messages) + len(answer(f"/api/s/{name}/rollouts/{row['id']}", detail)) + len(answer("", row))
        if size + more > share:
            break
        size += more
        told.append((row, detail, messages))
    rows = [row for row, _, _ in told]
    ids = [None, *(row["id"] for row in rows), None]
    pieces: list[bytes] = []
    for place, (row, detail, messages) in enumerate(told):
        neighbours = {"previous": ids[place], "next": ids[place + 2]}
        pieces += [answer(f"/api/s/{name}/rollouts/{row['id']}", detail | {"neighbours": neighbours}), messages]
    return _Part(rows, {row["id"]: len(detail["sequences"]) for row, detail, _ in told}, pieces, size)
