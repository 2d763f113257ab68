"""The binary format of a group: numbers as columns that can be read in place, everything else as compressed JSON.

Always true: `decode(encode(group))` is the group, with logprobs rounded to float32 and JSON as `fast_json` writes it;
equal groups have equal content ids; the columns of a view have matching lengths and no NaN; invalid bytes raise
BadGroupError. Numbers are little-endian; big-endian machines are not supported.
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

from hermes_rl.core.trajectory import Group, Sequence
from hermes_rl.store.container import (
    MAX_JSON_BYTES,
    BadGroupError,
    Bytes,
    PartContent,
    Parts,
    bits_part,
    column_part,
    json_part,
    pack_parts,
    unpack_bits,
    unpack_parts,
)
from hermes_rl.store.records import FORMAT, group_from_record, rollout_to_record

RUNS_OF_ONES = re.compile(rb"\x01+")
VERSION_CHUNK = 256
# An empty sequence is 4 bytes of a column and a kilobyte of Python objects.
MAX_SEQUENCES = 262_144

# Types that decoding relies on: a string would pass as a list of characters.
GROUP_FIELDS = {"tools": list, "provenance": dict, "group_overrides": dict}
ITEM_FIELDS = {"tool_schemas": list}
ROLLOUT_FIELDS = {"components": dict, "turn_scores": list, "usage": dict, "sampling": list}
CONVERSATION_FIELDS = {"messages": list, "tool_uses": list, "timings": list, "metadata": dict}
# Left out where they are empty, as they nearly always are, and in older groups.
SPARSE_FIELDS = ("states", "notes")
OPTIONAL_FIELDS = ("seat", "audit", "branch")


class Columns(NamedTuple):
    """The numbers of a group, concatenated over its sequences; each is a view into the group's bytes.

    `masks`, `scored` and the `_at` columns are bits, most significant first, as numpy.unpackbits reads them. `logprobs`
    has a value for each token set in `logprobs_at`. `versions` is run-length encoded by `version_runs` over the tokens
    set in `versions_at`. Both `_at` columns equal the mask, except in groups from other software. `sequences` counts
    sequences per rollout, `lengths` tokens per sequence; `scores` has a value for each rollout set in `scored`.
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
    """A group with only its header read; the rest is checked and decompressed on first access.

    `id` is the content id in the header; `decode` compares it with the content.
    """

    def __init__(self, parts: Parts) -> None:
        self.id = parts.id
        self.parts = parts

    @cached_property
    def columns(self) -> Columns:
        return _read_columns(self.parts)

    @cached_property
    def group(self) -> dict[str, Any]:
        """The group's fields without its item. Small."""
        return _check_object(self.parts.json("group"), "group", GROUP_FIELDS)

    @cached_property
    def rollouts(self) -> list[dict[str, Any]]:
        """The fields of each rollout, with the sampling of each of its sequences. Small."""
        return self._for_each_rollout("rollouts", ROLLOUT_FIELDS)

    @cached_property
    def item(self) -> dict[str, Any]:
        """The fields `item` and `tool_schemas`."""
        return _check_object(self.parts.json("item"), "item", ITEM_FIELDS)

    @cached_property
    def conversations(self) -> list[dict[str, Any]]:
        """Messages, tool uses, timings and metadata of each rollout; its states and notes if it has any."""
        return self._for_each_rollout("conversations", CONVERSATION_FIELDS)

    def _for_each_rollout(self, name: str, fields: Mapping[str, type]) -> list[dict[str, Any]]:
        values, rollouts = self.parts.json(name), len(self.columns.sequences)
        if not isinstance(values, list) or len(values) != rollouts:
            raise BadGroupError(f"the part {name!r} is not a list with one entry for each of {rollouts} rollouts")
        return [_check_object(value, f"{name}[{index}]", fields) for index, value in enumerate(values)]


def encode(group: Group) -> bytes:
    """The group in the binary format; BadGroupError for a value it cannot hold, such as a NaN logprob."""
    records = [rollout_to_record(rollout) for rollout in group.rollouts]
    conversations = [_conversation(record) for record in records]
    for record in records:
        sequences = record.pop("sequences")
        record["sampling"] = [sequence["sampling"] for sequence in sequences]
        if any("calls" in sequence for sequence in sequences):
            record["calls"] = [sequence.get("calls", []) for sequence in sequences]
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
    return pack_parts(
        [
            *_column_parts(group),
            json_part("group", about),
            json_part("rollouts", records),
            json_part("item", {"item": group.item, "tool_schemas": group.tool_schemas}),
            json_part("conversations", conversations),
        ]
    )


def _conversation(record: dict[str, Any]) -> dict[str, Any]:
    """Move the fields of a conversation out of a rollout's record, and leave out what is empty."""
    conversation = {name: record.pop(name) for name in CONVERSATION_FIELDS}
    conversation |= {name: value for name in SPARSE_FIELDS if (value := record.pop(name))}
    for name in OPTIONAL_FIELDS:
        if record[name] is None:
            del record[name]
    return conversation


def decode(data: Bytes, *, limit: int = MAX_JSON_BYTES) -> Group:
    """The group, fully checked. `limit` is the maximum of decompressed JSON in bytes."""
    view = open_group(data, limit=limit)
    columns = view.columns
    if view.parts.computed_id() != view.id:
        raise BadGroupError(f"the content does not match its id {view.id!r}")
    sequences = _sequence_records(columns)
    scores = _scatter(columns.scores.tolist(), unpack_bits(columns.scored, len(columns.sequences)))
    rollouts = [
        {
            **about,
            **conversation,
            "score": score,
            "sequences": _with_sampling(islice(sequences, count), about),
        }
        for about, conversation, score, count in zip(
            view.rollouts, view.conversations, scores, columns.sequences, strict=True
        )
    ]
    try:
        return group_from_record({**view.group, **view.item, "format": FORMAT, "rollouts": rollouts})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadGroupError(f"its JSON is not a valid group: {type(error).__name__}: {error}") from error


def open_group(data: Bytes, *, limit: int = MAX_JSON_BYTES) -> GroupView:
    """The group with only its header checked; for readers that need the numbers but not the messages."""
    return GroupView(unpack_parts(data, limit=limit))


def model_calls(about: Mapping[str, Any]) -> list[list[list[int]]]:
    """The model calls (number, first token) of each sequence of a view's rollout; empty where not recorded."""
    sampling, calls = about["sampling"], about.get("calls")
    if calls is None:
        return [[] for _ in sampling]
    if not isinstance(calls, list) or len(calls) != len(sampling):
        raise BadGroupError(
            f"the calls of a rollout are not a list with one entry for each of {len(sampling)} sequences"
        )
    return calls


def _column_parts(group: Group) -> Iterator[PartContent]:
    sequences = [sequence for rollout in group.rollouts for sequence in rollout.sequences]
    masks = [_mask(sequence) for sequence in sequences]
    yield column_part("sequences", "u32", [len(rollout.sequences) for rollout in group.rollouts])
    yield column_part("lengths", "u32", [len(sequence.tokens) for sequence in sequences])
    yield _token_part(sequences)
    yield bits_part("masks", b"".join(masks))
    yield from _optional_column("logprobs", [sequence.logprobs for sequence in sequences], masks)
    yield from _optional_column("versions", [sequence.versions for sequence in sequences], masks)
    scores = [rollout.score for rollout in group.rollouts]
    yield column_part("scores", "f64", [score for score in scores if score is not None])
    yield bits_part("scored", bytes(score is not None for score in scores))


def _mask(sequence: Sequence) -> bytes:
    try:
        mask = bytes(sequence.mask)
    except (TypeError, ValueError):
        mask = b"?"
    if mask.strip(b"\0\1"):
        raise BadGroupError("a mask holds values other than 0 and 1")
    return mask


def _token_part(sequences: list[Sequence]) -> PartContent:
    ids: list[int] = []
    for sequence in sequences:
        ids += sequence.tokens
    try:
        return column_part("tokens", "i32", ids)
    except BadGroupError:
        return column_part("tokens", "i64", ids)


def _optional_column(name: str, columns: list[tuple[Any, ...]], masks: list[bytes]) -> list[PartContent]:
    """The values of a column with gaps (None), and the bits of its positions unless they equal the mask."""
    write = _logprob_parts if name == "logprobs" else _version_parts
    values = _masked_values(columns, masks)
    if values and values.count(None) == len(values):
        # All groups of Atropos environments are like this: they have no versions.
        return [*write([]), bits_part(f"{name}_at", bytes(sum(map(len, masks))))]
    if values is not None:
        with suppress(BadGroupError):
            # Searching for None takes longer than writing, which rejects it anyway.
            return write(values)
    column = list(chain.from_iterable(columns))
    present = bytes(value is not None for value in column)
    return [*write(list(compress(column, present))), bits_part(f"{name}_at", present)]


def _masked_values(columns: list[tuple[Any, ...]], masks: list[bytes]) -> list[Any] | None:
    """The values where the mask is 1, in order; None when there is a value outside the mask."""
    values: list[Any] = []
    for column, mask in zip(columns, masks, strict=True):
        end = 0
        for run in RUNS_OF_ONES.finditer(mask):
            begin, before = run.start(), end
            end = run.end()
            if column[before:begin].count(None) != begin - before:
                return None
            values += column[begin:end]
        if column[end:].count(None) != len(column) - end:
            return None
    return values


def _logprob_parts(values: list[float]) -> list[PartContent]:
    part = column_part("logprobs", "f32", values)
    if not _all_finite(memoryview(part.data)):
        raise BadGroupError("a logprob is NaN or infinite")
    return [part]


def _version_parts(values: list[int]) -> list[PartContent]:
    pieces: list[tuple[int, int]] = []
    for begin in range(0, len(values), VERSION_CHUNK):
        chunk = values[begin : begin + VERSION_CHUNK]
        # Nearly always one version, and counting is four times as fast as grouping.
        uniform = chunk.count(chunk[0]) == len(chunk)
        pieces += [(chunk[0], len(chunk))] if uniform else [(value, len(list(run))) for value, run in groupby(chunk)]
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
    if len(columns.lengths) > MAX_SEQUENCES:
        raise BadGroupError(f"the group has {len(columns.lengths)} sequences; the limit is {MAX_SEQUENCES}")
    tokens = len(columns.tokens)
    bits = [name for name in ("masks", "logprobs_at", "versions_at") if name in parts]
    sizes = [
        ("lengths", len(columns.lengths), "sequences", sum(columns.sequences)),
        ("tokens", tokens, "lengths", sum(columns.lengths)),
        *((name, parts.size(name), "tokens", tokens) for name in bits),
        ("logprobs", len(columns.logprobs), "marks", _count_ones(columns.logprobs_at)),
        ("versions", len(columns.versions), "version_runs", len(columns.version_runs)),
        ("version_runs", sum(columns.version_runs), "marks", _count_ones(columns.versions_at)),
        ("scored", parts.size("scored"), "sequences", len(columns.sequences)),
        ("scores", len(columns.scores), "scored", _count_ones(columns.scored)),
    ]
    for name, count, other, expected in sizes:
        if count != expected:
            raise BadGroupError(f"column sizes do not match: {name} has {count}, {other} gives {expected}")
    if not _all_finite(columns.logprobs.cast("B")):
        raise BadGroupError("a logprob is NaN or infinite")
    if not all(map(math.isfinite, columns.scores)):
        raise BadGroupError("a score is NaN or infinite")
    return columns


def _all_finite(floats: "memoryview[int]") -> bool:
    # The highest byte of a float32 is 0x7f or 0xff in NaN, infinity and values above 1e38. Searching for that byte
    # first takes a tenth of the time.
    highest = floats.tobytes()[3::4]
    return not (b"\x7f" in highest or b"\xff" in highest) or all(map(math.isfinite, floats.cast("f")))


def _count_ones(bits: "memoryview[int]") -> int:
    return int.from_bytes(bits, "big").bit_count()


def _sequence_records(columns: Columns) -> Iterator[dict[str, Any]]:
    count = len(columns.tokens)
    masks = unpack_bits(columns.masks, count)
    logprobs = _scatter(columns.logprobs.tolist(), unpack_bits(columns.logprobs_at, count))
    versions = _scatter(
        [*chain.from_iterable(map(repeat, columns.versions, columns.version_runs))],
        unpack_bits(columns.versions_at, count),
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


def _scatter(values: list[Any], present: bytes) -> list[Any]:
    """The values at the positions where `present` is 1, in order, and None elsewhere."""
    scattered: list[Any] = [None] * len(present)
    used = 0
    for run in RUNS_OF_ONES.finditer(present):
        begin, end = run.span()
        scattered[begin:end] = values[used : used + end - begin]
        used += end - begin
    return scattered


def _with_sampling(sequences: Iterable[dict[str, Any]], about: Mapping[str, Any]) -> list[dict[str, Any]]:
    sequences, sampling = list(sequences), about["sampling"]
    if len(sampling) != len(sequences):
        raise BadGroupError(f"a rollout has {len(sequences)} sequences but {len(sampling)} sampling entries")
    return [
        {**sequence, "sampling": entry, "calls": calls}
        for sequence, entry, calls in zip(sequences, sampling, model_calls(about), strict=True)
    ]


def _check_object(value: Any, path: str, fields: Mapping[str, type]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadGroupError(f"{path} is not an object")
    for name, kind in fields.items():
        if not isinstance(value.get(name), kind):
            raise BadGroupError(f"{path}.{name} must be a {kind.__name__}, not a {type(value.get(name)).__name__}")
    return value
