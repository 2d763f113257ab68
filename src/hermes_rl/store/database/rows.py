"""Rows that the store extracts from a group's bytes: one for the queue, one per rollout, and text for search.

Always true: they derive from the bytes alone, so they can be rebuilt while those exist; a trainable group has no
`refusal`, and its `size` counts the rollouts that are scored and not withheld.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from hermes_rl.core.errors import FailureSource
from hermes_rl.core.trajectory import StopReason
from hermes_rl.store.codec import Columns, GroupView, open_group
from hermes_rl.store.container import BadGroupError, Bytes, unpack_bits

# Indexing a whole conversation costs more than writing its tokens, and PostgreSQL rejects a text whose index exceeds
# a megabyte.
TEXT_LIMIT = 4_000
NUMBER_BITS = 16
INT64_LIMIT = 2**63


class RolloutRow(NamedTuple):
    """A rollout as the viewer lists it, in the column order of the table `rollouts` after its first three."""

    number: int
    item_id: str
    seed: str
    score: float | None
    stop_reason: str | None
    failure: str | None
    cause: str | None
    withheld: str | None
    turns: int
    sequences: int
    tokens: int
    prompt_tokens: int | None
    completion_tokens: int | None
    seconds: float
    seat: str | None = None


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group as the queue sees it. `lacks` lists what some trainers need and the group does not have."""

    id: str
    content_id: str
    item_id: str
    split: str
    draw: int
    size: int
    oldest_version: int | None
    lacks: tuple[str, ...]
    withheld: str | None
    refusal: str | None
    rollouts: tuple[RolloutRow, ...]


def read_rows(data: Bytes) -> GroupRow:
    """The rows of an encoded group; BadGroupError for invalid bytes.

    Conversations are verified by checksum only; whether they are valid JSON is left to readers.
    """
    view = open_group(data)
    view.parts.check_all()
    try:
        return _rows(view)
    except BadGroupError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadGroupError(f"its JSON is not a valid group: {type(error).__name__}: {error}") from error


def read_texts(data: Bytes, *, limit: int = TEXT_LIMIT) -> list[str]:
    """The search text of each rollout; empty when the conversations cannot be read."""
    try:
        return [_conversation_text(conversation["messages"], limit) for conversation in open_group(data).conversations]
    except BadGroupError:
        return []


def rollout_id(place: int, number: int) -> int:
    return place << NUMBER_BITS | number


def sanitize_text(text: str) -> str:
    """The text as both databases accept it: PostgreSQL has no NUL, and neither accepts lone surrogates."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _rows(view: GroupView) -> GroupRow:
    about, columns = view.group, view.columns
    if len(view.rollouts) >= 1 << NUMBER_BITS:
        raise BadGroupError(f"a group of {len(view.rollouts)} rollouts; the limit is {(1 << NUMBER_BITS) - 1}")
    rollouts = tuple(_rollouts(view))
    trained = [row.score is not None and row.withheld is None for row in rollouts]
    size = sum(trained)
    withheld = _optional_text(about["withheld"])
    return GroupRow(
        id=sanitize_text(_optional_text(about["id"]) or view.id),
        content_id=sanitize_text(view.id),
        item_id=_require_text(about["item_id"]),
        split=_require_text(about["split"]),
        draw=_require_int(about["draw"]),
        size=size,
        oldest_version=_oldest_version(columns, trained),
        lacks=tuple(_missing_fields(columns, trained)),
        withheld=withheld,
        refusal=_refusal(_require_text(about["split"]), withheld, size, rollouts),
        rollouts=rollouts,
    )


def _rollouts(view: GroupView) -> Iterator[RolloutRow]:
    columns = view.columns
    scored = unpack_bits(columns.scored, len(columns.sequences))
    scores = iter(columns.scores)
    lengths = iter(columns.lengths)
    for number, (record, sequences) in enumerate(zip(view.rollouts, columns.sequences, strict=True)):
        failure, stop_reason, score = record["failure"], record["stop_reason"], next(scores) if scored[number] else None
        if (score is None) == (failure is None):
            raise BadGroupError(f"rollouts[{number}] needs either a score or a failure, got {score!r} and {failure!r}")
        if score is not None and stop_reason is None:
            raise BadGroupError(f"rollouts[{number}] is scored but has no stop_reason")
        yield RolloutRow(
            number=number,
            item_id=_require_text(record["item_id"]),
            seed=str(_require_int(record["seed"], largest=None)),
            score=score,
            stop_reason=None if stop_reason is None else StopReason(stop_reason).value,
            failure=None if failure is None else FailureSource(failure["whose"]).value,
            cause=None if failure is None else _require_text(failure["cause"]),
            withheld=_optional_text(record["withheld"]),
            turns=_require_int(record["turns_used"]),
            sequences=sequences,
            tokens=sum(next(lengths) for _ in range(sequences)),
            prompt_tokens=_count(record["usage"], "prompt_tokens"),
            completion_tokens=_count(record["usage"], "completion_tokens"),
            seconds=_seconds(record["seconds"]),
            seat=_optional_text(record.get("seat")),
        )


def _refusal(split: str, withheld: str | None, size: int, rollouts: tuple[RolloutRow, ...]) -> str | None:
    """Why no trainer may ever get the group."""
    if split != "train":
        return "not_training_data"
    if withheld is not None:
        return "withheld"
    if not size:
        return "no_score"
    if any(row.score is not None and row.withheld is None and not row.tokens for row in rollouts):
        return "no_tokens"
    return None


def _missing_fields(columns: Columns, trained: list[bool]) -> Iterator[str]:
    # Nearly always the bits are the mask itself, and there is nothing to compare.
    for name, at in (("logprobs", columns.logprobs_at), ("versions", columns.versions_at)):
        if at is not columns.masks and _unmarked(columns, at, trained):
            yield name
    if any(count != 1 for count, kept in zip(columns.sequences, trained, strict=True) if kept):
        yield "one_sequence"


def _unmarked(columns: Columns, at: "memoryview[int]", trained: list[bool]) -> bool:
    count = len(columns.tokens)
    masks, marks = (int.from_bytes(unpack_bits(bits, count), "big") for bits in (columns.masks, at))
    without = (masks & ~marks).to_bytes(count, "big")
    return any(1 in without[begin:end] for begin, end in _spans(columns, trained))


def _oldest_version(columns: Columns, trained: list[bool]) -> int | None:
    versions = columns.versions
    if all(trained) or len(versions) <= 1:
        return min(versions, default=None)
    marks = unpack_bits(columns.versions_at, len(columns.tokens))
    starts = [0, *accumulate(columns.version_runs)]
    oldest: int | None = None
    for begin, end in _spans(columns, trained):
        first = marks.count(1, 0, begin)
        last = first + marks.count(1, begin, end) - 1
        if last >= first:
            low = min(versions[bisect_right(starts, first) - 1 : bisect_right(starts, last)])
            oldest = low if oldest is None else min(oldest, low)
    return oldest


def _spans(columns: Columns, trained: list[bool]) -> Iterator[tuple[int, int]]:
    """The token range of each rollout to train on."""
    sequence_ends = [0, *accumulate(columns.sequences)]
    token_ends = [0, *accumulate(columns.lengths)]
    for (begin, end), kept in zip(pairwise(sequence_ends), trained, strict=True):
        if kept:
            yield token_ends[begin], token_ends[end]


def _conversation_text(messages: Any, limit: int) -> str:
    """The text of a conversation, cut in the middle: tasks are named at the start and end at the end."""
    parts: list[str] = []
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, str):
            parts.append(content)
        elif isinstance(content, list):
            parts.extend(
                part["text"] for part in content if isinstance(part, Mapping) and isinstance(part.get("text"), str)
            )
        calls = message.get("tool_calls") if isinstance(message, Mapping) else None
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, Mapping) else None
            if isinstance(function, Mapping):
                parts.extend(text for name in ("name", "arguments") if isinstance(text := function.get(name), str))
    text = "\n".join(parts)
    if len(text) > limit:
        text = f"{text[: limit // 2]}\n…\n{text[len(text) - limit // 2 :]}"
    return sanitize_text(text)


def _optional_text(value: Any) -> str | None:
    return None if value is None else _require_text(value)


def _require_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return sanitize_text(value)


def _require_int(value: Any, *, largest: int | None = INT64_LIMIT) -> int:
    if type(value) is not int or (largest is not None and not -largest <= value < largest):
        raise TypeError(f"{value!r} is not a 64-bit integer")
    return value


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    return None if usage[name] is None else _require_int(usage[name])


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not math.isfinite(seconds):
        raise ValueError(f"seconds must be finite, not {value!r}")
    return seconds
