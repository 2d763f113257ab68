"""What the store keeps of a group beside its bytes: a row for the queue, a row a rollout, and words to find it by.

Always true: all of it is read from the bytes, so it can be made again as long as they are kept; a group that can be
trained on has no `refusal`, and its `size` counts the rollouts that have a score and are not withheld.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from hermes_rl.errors import Whose
from hermes_rl.store.codec import Columns, GroupView, open_group
from hermes_rl.store.parts import BadGroupError, Bytes, flags_of
from hermes_rl.trajectory import StopReason

# The words of a whole conversation cost more to index than its tokens to write, and PostgreSQL refuses a text whose
# index is beyond a megabyte.
TEXT_LIMIT = 4_000
NUMBER_BITS = 16
LARGEST = 2**63


class RolloutRow(NamedTuple):
    """A rollout as the viewer lists it, in the order of the columns of `rollouts` after the first three."""

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


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group as the queue sees it. `lacks` is what some trainers need and it does not have."""

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
    """The rows of a group in its binary form; BadGroupError for bytes that are none.

    Conversations are left packed: their bytes are those that were written; whether that was JSON is seen by readers.
    """
    view = open_group(data)
    view.parts.check_all()
    try:
        return _rows(view)
    except BadGroupError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadGroupError(f"its JSON makes no group: {type(error).__name__}: {error}") from error


def read_texts(data: Bytes, *, limit: int = TEXT_LIMIT) -> list[str]:
    """What each rollout is found by; nothing where the conversations cannot be read."""
    try:
        return [_conversation_text(one["messages"], limit) for one in open_group(data).conversations]
    except BadGroupError:
        return []


def rollout_id(place: int, number: int) -> int:
    return place << NUMBER_BITS | number


def plain(text: str) -> str:
    """The text as both databases take it: PostgreSQL knows no NUL, and neither knows half a surrogate pair."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _rows(view: GroupView) -> GroupRow:
    about, columns = view.group, view.columns
    if len(view.rollouts) >= 1 << NUMBER_BITS:
        raise BadGroupError(f"a group of {len(view.rollouts)} rollouts; {(1 << NUMBER_BITS) - 1} is the most")
    rollouts = tuple(_rollouts(view))
    trained = [row.score is not None and row.withheld is None for row in rollouts]
    size = sum(trained)
    withheld = _text(about["withheld"])
    return GroupRow(
        id=plain(_text(about["id"]) or view.id),
        content_id=plain(view.id),
        item_id=_word(about["item_id"]),
        split=_word(about["split"]),
        draw=_whole(about["draw"]),
        size=size,
        oldest_version=_oldest_version(columns, trained),
        lacks=tuple(_lacks(columns, trained)),
        withheld=withheld,
        refusal=_refusal(_word(about["split"]), withheld, size, rollouts),
        rollouts=rollouts,
    )


def _rollouts(view: GroupView) -> Iterator[RolloutRow]:
    columns = view.columns
    scored = flags_of(columns.scored, len(columns.sequences))
    scores = iter(columns.scores)
    lengths = iter(columns.lengths)
    for number, (said, sequences) in enumerate(zip(view.rollouts, columns.sequences, strict=True)):
        failure, stop_reason, score = said["failure"], said["stop_reason"], next(scores) if scored[number] else None
        if (score is None) == (failure is None):
            raise BadGroupError(f"rollouts[{number}] has either a score or a failure, got {score!r} and {failure!r}")
        if score is not None and stop_reason is None:
            raise BadGroupError(f"rollouts[{number}] is scored and does not say why it stopped")
        yield RolloutRow(
            number=number,
            item_id=_word(said["item_id"]),
            seed=str(_whole(said["seed"], largest=None)),
            score=score,
            stop_reason=None if stop_reason is None else StopReason(stop_reason).value,
            failure=None if failure is None else Whose(failure["whose"]).value,
            cause=None if failure is None else _word(failure["cause"]),
            withheld=_text(said["withheld"]),
            turns=_whole(said["turns_used"]),
            sequences=sequences,
            tokens=sum(next(lengths) for _ in range(sequences)),
            prompt_tokens=_count(said["usage"], "prompt_tokens"),
            completion_tokens=_count(said["usage"], "completion_tokens"),
            seconds=_seconds(said["seconds"]),
        )


def _refusal(split: str, withheld: str | None, size: int, rollouts: tuple[RolloutRow, ...]) -> str | None:
    """Why no trainer is ever to have it."""
    if split != "train":
        return "not_training_data"
    if withheld is not None:
        return "withheld"
    if not size:
        return "no_score"
    if any(row.score is not None and row.withheld is None and not row.tokens for row in rollouts):
        return "no_tokens"
    return None


def _lacks(columns: Columns, trained: list[bool]) -> Iterator[str]:
    # Nearly always the marks are the mask itself, and there is nothing to compare.
    for name, at in (("logprobs", columns.logprobs_at), ("versions", columns.versions_at)):
        if at is not columns.masks and _unmarked(columns, at, trained):
            yield name
    if any(count != 1 for count, kept in zip(columns.sequences, trained, strict=True) if kept):
        yield "one_sequence"


def _unmarked(columns: Columns, at: "memoryview[int]", trained: list[bool]) -> bool:
    count = len(columns.tokens)
    masks, marks = (int.from_bytes(flags_of(bits, count), "big") for bits in (columns.masks, at))
    without = (masks & ~marks).to_bytes(count, "big")
    return any(1 in without[begin:end] for begin, end in _spans(columns, trained))


def _oldest_version(columns: Columns, trained: list[bool]) -> int | None:
    versions = columns.versions
    if all(trained) or len(versions) <= 1:
        return min(versions, default=None)
    marks = flags_of(columns.versions_at, len(columns.tokens))
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
    """Where the tokens of each rollout that is trained on begin and end."""
    sequence_ends = [0, *accumulate(columns.sequences)]
    token_ends = [0, *accumulate(columns.lengths)]
    for (begin, end), kept in zip(pairwise(sequence_ends), trained, strict=True):
        if kept:
            yield token_ends[begin], token_ends[end]


def _conversation_text(messages: Any, limit: int) -> str:
    """What was said, from the beginning and from the end: where tasks are named and where they end."""
    parts: list[str] = []
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, str):
            parts.append(content)
        elif isinstance(content, list):
            parts.extend(
                one["text"] for one in content if isinstance(one, Mapping) and isinstance(one.get("text"), str)
            )
        calls = message.get("tool_calls") if isinstance(message, Mapping) else None
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, Mapping) else None
            if isinstance(function, Mapping):
                parts.extend(text for name in ("name", "arguments") if isinstance(text := function.get(name), str))
    text = "\n".join(parts)
    if len(text) > limit:
        text = f"{text[: limit // 2]}\n…\n{text[len(text) - limit // 2 :]}"
    return plain(text)


def _text(value: Any) -> str | None:
    return None if value is None else _word(value)


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return plain(value)


def _whole(value: Any, *, largest: int | None = LARGEST) -> int:
    if type(value) is not int or (largest is not None and not -largest <= value < largest):
        raise TypeError(f"{value!r} is no whole number of 64 bits")
    return value


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    return None if usage[name] is None else _whole(usage[name])


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not math.isfinite(seconds):
        raise ValueError(f"{value!r} seconds")
    return seconds
