"""The binary form of a group: its numbers as columns that can be read in place, all else as packed JSON.

Always true: `decode(encode(group))` is the group, its logprobs rounded to float32 and its JSON as `jsontext` keeps it;
equal groups have equal content ids; the columns of a view agree in length and hold no NaN; what is no group raises
BadGroupError. Numbers are little-endian, and so must the machine be.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from itertools import chain, compress, groupby, islice, repeat
from operator import itemgetter
from typing import Any, NamedTuple

from hermes_rl.store.parts import (
    LIMIT,
    BadGroupError,
    Bytes,
    Content,
    Parts,
    bits_part,
    column_part,
    flags_of,
    json_part,
    seal,
    unseal,
)
from hermes_rl.store.records import FORMAT, group_of, rollout_record
from hermes_rl.trajectory import Group, Sequence

MARKED = re.compile(rb"\x01+")
STRETCH = 256

# What decoding relies on: text would pass for a list of its letters.
GROUP_FIELDS = {"tools": list, "provenance": dict, "group_overrides": dict}
ITEM_FIELDS = {"tool_schemas": list}
ROLLOUT_FIELDS = {"components": dict, "turn_scores": list, "usage": dict, "sampling": list}
CONVERSATION_FIELDS = {"messages": list, "tool_uses": list, "timings": list, "metadata": dict}


class Columns(NamedTuple):
    """The numbers of a group, over all its sequences one after the other; each a view into the group's own bytes.

    `masks`, `scored` and the `_at` columns are bits, the first in the highest place of the first byte, as
    numpy.unpackbits reads them. `logprobs` are those of the tokens marked in `logprobs_at`, and `versions` stand once
    for each run of `version_runs` tokens marked in `versions_at`; both marks are the mask, but for groups from outside.
    `sequences` counts them by rollout, `lengths` their tokens, and `scores` are of the rollouts marked in `scored`.
    """

    sequences: "memoryview[int]"
    lengths: "memoryview[int]"
    tokens: "memoryview[int]"
    masks: "memoryview[int]"
    logprobs: "memoryview[float]"
    logprobs_at: "memoryview[int]"
    versions: "memoryview[int]"
    version_runs: "memoryview[int]"
    versions_at: "memoryview[int]"
    scores: "memoryview[float]"
    scored: "memoryview[int]"


class GroupView:
    """A group of which only the header was read; the rest is checked and unpacked as it is asked for.

    `id` is the content id as the writer says it; `decode` compares it with the content.
    """

    def __init__(self, parts: Parts) -> None:
        self.id = parts.id
        self.parts = parts

    @cached_property
    def columns(self) -> Columns:
        return _read_columns(self.parts)

    @cached_property
    def group(self) -> dict[str, Any]:
        """What is said of the whole group, without its item. Small."""
        return _checked(self.parts.json("group"), "group", GROUP_FIELDS)

    @cached_property
    def rollouts(self) -> list[dict[str, Any]]:
        """What is said of each rollout, and how each of its sequences was sampled. Small."""
        return self._for_each_rollout("rollouts", ROLLOUT_FIELDS)

    @cached_property
    def item(self) -> dict[str, Any]:
        """`item` and `tool_schemas`."""
        return _checked(self.parts.json("item"), "item", ITEM_FIELDS)

    @cached_property
    def conversations(self) -> list[dict[str, Any]]:
        """Messages, tool uses, timings and metadata of each rollout."""
        return self._for_each_rollout("conversations", CONVERSATION_FIELDS)

    def _for_each_rollout(self, name: str, fields: Mapping[str, type]) -> list[dict[str, Any]]:
        values, rollouts = self.parts.json(name), len(self.columns.sequences)
        if not isinstance(values, list) or len(values) != rollouts:
            raise BadGroupError(f"the part {name!r} is no list of {rollouts}, one a rollout")
        return [_checked(value, f"{name}[{index}]", fields) for index, value in enumerate(values)]


def encode(group: Group) -> bytes:
    """The group's binary form; BadGroupError for a number that has no place in it, such as a logprob that is NaN."""
    records = [rollout_record(rollout) for rollout in group.rollouts]
    conversations = [{name: record.pop(name) for name in CONVERSATION_FIELDS} for record in records]
    for record in records:
        record["sampling"] = [sequence["sampling"] for sequence in record.pop("sequences")]
        del record["score"]
    about = {
        "id": group.id,
        "draw": group.draw,
        "item_id": group.item_id,
        "split": group.split,
        "created_at": group.created_at,
        "tools": group.tools,
        "withheld": group.withheld,
        "provenance": asdict(group.provenance),
        "group_overrides": group.overrides,
    }
    return seal(
        [
            *_columns(group),
            json_part("group", about),
            json_part("rollouts", records),
            json_part("item", {"item": group.item, "tool_schemas": group.tool_schemas}),
            json_part("conversations", conversations),
        ]
    )


def decode(data: Bytes, *, limit: int = LIMIT) -> Group:
    """The group, all of it checked. `limit` is of bytes of JSON, once unpacked."""
    view = open_group(data, limit=limit)
    columns = view.columns
    if view.parts.computed_id() != view.id:
        raise BadGroupError(f"the content is not that of its id {view.id!r}")
    sequences = _sequence_records(columns)
    scores = _spread(columns.scores.tolist(), flags_of(columns.scored, len(columns.sequences)))
    rollouts = [
        {**about, **conversation, "score": score, "sequences": _sampled(islice(sequences, count), about["sampling"])}
        for about, conversation, score, count in zip(
            view.rollouts, view.conversations, scores, columns.sequences, strict=True
        )
    ]
    try:
        return group_of({**view.group, **view.item, "format": FORMAT, "rollouts": rollouts})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadGroupError(f"its JSON makes no group: {type(error).__name__}: {error}") from error


def open_group(data: Bytes, *, limit: int = LIMIT) -> GroupView:
    """The group with only its header checked; for whoever needs the numbers and not the messages."""
    return GroupView(unseal(data, limit=limit))


def _columns(group: Group) -> Iterator[Content]:
    sequences = [sequence for rollout in group.rollouts for sequence in rollout.sequences]
    masks = [_mask(sequence) for sequence in sequences]
    yield column_part("sequences", "u32", [len(rollout.sequences) for rollout in group.rollouts])
    yield column_part("lengths", "u32", [len(sequence.tokens) for sequence in sequences])
    yield _tokens(sequences)
    yield bits_part("masks", b"".join(masks))
    yield from _marked("logprobs", [sequence.logprobs for sequence in sequences], masks)
    yield from _marked("versions", [sequence.versions for sequence in sequences], masks)
    scores = [rollout.score for rollout in group.rollouts]
    yield column_part("scores", "f64", [score for score in scores if score is not None])
    yield bits_part("scored", bytes(score is not None for score in scores))


def _mask(sequence: Sequence) -> bytes:
    try:
        mask = bytes(sequence.mask)
    except (TypeError, ValueError):
        mask = b"?"
    if mask.strip(b"\0\1"):
        raise BadGroupError("a mask holds something else than 0 and 1")
    return mask


def _tokens(sequences: list[Sequence]) -> Content:
    ids: list[int] = []
    for sequence in sequences:
        ids += sequence.tokens
    try:
        return column_part("tokens", "i32", ids)
    except BadGroupError:
        return column_part("tokens", "i64", ids)


def _marked(name: str, columns: list[tuple[Any, ...]], masks: list[bytes]) -> list[Content]:
    """The values of a column that holds None where there is none, and their marks unless those are the mask."""
    write = _logprobs if name == "logprobs" else _versions
    values = _gathered(columns, masks)
    if values and values.count(None) == len(values):
        # As in all groups that come from Atropos' environments, which know no versions.
        return [*write([]), bits_part(f"{name}_at", bytes(sum(map(len, masks))))]
    if values is not None:
        with suppress(BadGroupError):
            # Looking for None among the sampled ones would take longer than writing them, which refuses it.
            return write(values)
    column = list(chain.from_iterable(columns))
    marks = bytes(value is not None for value in column)
    return [*write(list(compress(column, marks))), bits_part(f"{name}_at", marks)]


def _gathered(columns: list[tuple[Any, ...]], masks: list[bytes]) -> list[Any] | None:
    """The values where the mask is 1, in order; None when there is a value anywhere else."""
    values: list[Any] = []
    for column, mask in zip(columns, masks, strict=True):
        end = 0
        for run in MARKED.finditer(mask):
            begin, before = run.start(), end
            end = run.end()
            if column[before:begin].count(None) != begin - before:
                return None
            values += column[begin:end]
        if column[end:].count(None) != len(column) - end:
            return None
    return values


def _logprobs(values: list[float]) -> list[Content]:
    part = column_part("logprobs", "f32", values)
    if not _all_finite(memoryview(part.data)):
        raise BadGroupError("a logprob is NaN or infinite")
    return [part]


def _versions(values: list[int]) -> list[Content]:
    pieces: list[tuple[int, int]] = []
    for begin in range(0, len(values), STRETCH):
        stretch = values[begin : begin + STRETCH]
        # Nearly always of one version, and to count is four times as fast as to group.
        alike = stretch.count(stretch[0]) == len(stretch)
        pieces += [(stretch[0], len(stretch))] if alike else [(one, len(list(run))) for one, run in groupby(stretch)]
    runs = [(version, sum(length for _, length in run)) for version, run in groupby(pieces, itemgetter(0))]
    return [
        column_part("versions", "i64", [version for version, _ in runs]),
        column_part("version_runs", "u32", [length for _, length in runs]),
    ]


def _read_columns(parts: Parts) -> Columns:
    masks = parts.bits("masks")
    columns = Columns(
        sequences=parts.integers("sequences", "u32"),
        lengths=parts.integers("lengths", "u32"),
        tokens=parts.integers("tokens", "i32", "i64"),
        masks=masks,
        logprobs=parts.floats("logprobs", "f32"),
        logprobs_at=parts.bits("logprobs_at") if "logprobs_at" in parts else masks,
        versions=parts.integers("versions", "i64"),
        version_runs=parts.integers("version_runs", "u32"),
        versions_at=parts.bits("versions_at") if "versions_at" in parts else masks,
        scores=parts.floats("scores", "f64"),
        scored=parts.bits("scored"),
    )
    tokens = len(columns.tokens)
    bits = [name for name in ("masks", "logprobs_at", "versions_at") if name in parts]
    agreements = [
        ("lengths", len(columns.lengths), "sequences", sum(columns.sequences)),
        ("tokens", tokens, "lengths", sum(columns.lengths)),
        *((name, parts.size(name), "tokens", tokens) for name in bits),
        ("logprobs", len(columns.logprobs), "marks", _ones(columns.logprobs_at)),
        ("versions", len(columns.versions), "version_runs", len(columns.version_runs)),
        ("version_runs", sum(columns.version_runs), "marks", _ones(columns.versions_at)),
        ("scored", parts.size("scored"), "sequences", len(columns.sequences)),
        ("scores", len(columns.scores), "scored", _ones(columns.scored)),
    ]
    for name, count, other, due in agreements:
        if count != due:
            raise BadGroupError(f"the columns do not agree: {name} {count}, by {other} {due}")
    if not _all_finite(columns.logprobs.cast("B")):
        raise BadGroupError("a logprob is NaN or infinite")
    if not all(map(math.isfinite, columns.scores)):
        raise BadGroupError("a score is NaN or infinite")
    return columns


def _all_finite(floats: "memoryview[int]") -> bool:
    # In NaN and infinity the highest byte of a float32 is 0x7f or 0xff, as it is in numbers of 1e38 and more: to look
    # for that byte takes a tenth of the time.
    highest = floats.tobytes()[3::4]
    return not (b"\x7f" in highest or b"\xff" in highest) or all(map(math.isfinite, floats.cast("f")))


def _ones(bits: "memoryview[int]") -> int:
    return int.from_bytes(bits, "big").bit_count()


def _sequence_records(columns: Columns) -> Iterator[dict[str, Any]]:
    count = len(columns.tokens)
    masks = flags_of(columns.masks, count)
    logprobs = _spread(columns.logprobs.tolist(), flags_of(columns.logprobs_at, count))
    versions = _spread(
        [*chain.from_iterable(map(repeat, columns.versions, columns.version_runs))],
        flags_of(columns.versions_at, count),
    )
    end = 0
    for length in columns.lengths:
        begin, end = end, end + length
        yield {
            "tokens": tuple(columns.tokens[begin:end].tolist()),
            "mask": tuple(masks[begin:end]),
            "logprobs": tuple(logprobs[begin:end]),
            "versions": tuple(versions[begin:end]),
        }


def _spread(values: list[Any], marks: bytes) -> list[Any]:
    """The values at the marked places, in order, and None at the others."""
    spread: list[Any] = [None] * len(marks)
    taken = 0
    for run in MARKED.finditer(marks):
        begin, end = run.span()
        spread[begin:end] = values[taken : taken + end - begin]
        taken += end - begin
    return spread


def _sampled(sequences: Iterable[dict[str, Any]], sampling: list[Any]) -> list[dict[str, Any]]:
    sequences = list(sequences)
    if len(sampling) != len(sequences):
        raise BadGroupError(f"a rollout of {len(sequences)} sequences says {len(sampling)} times how it was sampled")
    return [{**sequence, "sampling": how} for sequence, how in zip(sequences, sampling, strict=True)]


def _checked(value: Any, place: str, fields: Mapping[str, type]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadGroupError(f"{place} is no object")
    for name, kind in fields.items():
        if not isinstance(value.get(name), kind):
            raise BadGroupError(f"{place}.{name} must be a {kind.__name__}, not a {type(value.get(name)).__name__}")
    return value
