"""Summaries of groups and rollouts for lists, and their search text.

Always true: any record is accepted without raising, since it may come from other software; missing values are None.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hermes_rl.viewer.lenient_json import as_int, as_list, as_mapping, as_number, as_str, to_text

# The bits of a rollout's position in its number, see `rollout_number`.
NUMBER_BITS = 16
MAX_ROLLOUTS = 1 << NUMBER_BITS
MAX_TITLE = 140
MAX_WORD = 200
TEXT_LIMIT = 16_000_000
TITLE_FIELDS = ("title", "prompt", "question", "instruction", "task", "problem", "query", "name", "input")
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")


class ToolCounts(NamedTuple):
    calls: int
    errors: int


@dataclass(frozen=True, slots=True)
class RolloutEntry:
    """One rollout. `offset` and `length` locate its JSON in a large line of a file; None otherwise."""

    position: int
    index: int
    score: float | None
    failure: str | None
    stop_reason: str | None
    withheld: str | None
    turns: int | None
    completion_tokens: int | None
    seconds: float | None
    version_low: int | None
    version_high: int | None
    tools: Mapping[str, ToolCounts]
    words: str
    offset: int | None = None
    length: int | None = None
    seat: str | None = None
    branch_of: int | None = None
    branch_turn: int | None = None


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """One group. `number` is its line in a file or its place in a store, and its id in URLs."""

    number: int
    offset: int
    length: int
    id: str
    item_id: str | None
    title: str
    draw: int | None
    split: str | None
    created_at: str | None
    withheld: str | None
    environment: str | None
    model: str | None
    rollouts: tuple[RolloutEntry, ...] = field(default=())


def rollout_number(group: int, position: int) -> int:
    return group << NUMBER_BITS | position


def describe_group(
    about: Mapping[str, Any], rollouts: tuple[RolloutEntry, ...], first: Mapping[str, Any], at: tuple[int, int, int]
) -> GroupEntry:
    """`about` is the group without its rollouts, `first` its first rollout; `at` is number, offset and length."""
    provenance = as_mapping(about.get("provenance"))
    return GroupEntry(
        *at,
        id=_short_text(about.get("id")) or "",
        item_id=_short_text(about.get("item_id")) or _short_text(first.get("item_id")),
        title=item_title(about.get("item", first.get("item")), first),
        draw=as_int(about.get("draw")),
        split=_short_text(about.get("split")),
        created_at=_short_text(about.get("created_at")),
        withheld=_short_text(about.get("withheld")),
        environment=_short_text(provenance.get("environment")),
        model=_short_text(provenance.get("model")),
        rollouts=rollouts,
    )


def describe_rollout(
    record: Mapping[str, Any],
    position: int,
    versions: tuple[int | None, int | None],
    span: tuple[int, int] | None = None,
) -> RolloutEntry:
    offset, length = span or (None, None)
    index = as_int(record.get("index"))
    score = as_number(record.get("score", record.get("reward")))
    return RolloutEntry(
        position=position,
        index=position if index is None else index,
        score=None if score is None else float(score),
        failure=failure_text(record),
        stop_reason=_short_text(record.get("stop_reason")),
        withheld=_short_text(record.get("withheld")),
        turns=as_int(record.get("turns_used")),
        completion_tokens=as_int(as_mapping(record.get("usage")).get("completion_tokens")),
        seconds=as_number(record.get("seconds")),
        version_low=versions[0],
        version_high=versions[1],
        tools=tool_counts(record),
        words=search_text(record),
        offset=offset,
        length=length,
        seat=_short_text(record.get("seat")),
        branch_of=as_int(as_mapping(record.get("branch")).get("rollout")),
        branch_turn=as_int(as_mapping(record.get("branch")).get("turn")),
    )


def failure_text(record: Mapping[str, Any]) -> str | None:
    failure = record.get("failure")
    if failure is None:
        return None
    fields = as_mapping(failure)
    return _short_text(f"{fields.get('whose', 'unknown')}/{fields.get('cause', 'unknown')}" if fields else failure)


def item_title(item: Any, rollout: Mapping[str, Any]) -> str:
    """One line that identifies the item: its task, else the request to the policy."""
    if isinstance(item, str):
        return one_line(item)
    titles = (as_str(as_mapping(item).get(name)) for name in TITLE_FIELDS)
    if title := next(filter(None, titles), None):
        return one_line(title)
    return one_line(_user_request(rollout) or (to_text(item) if item else ""))


def prompt_length(rollout: Mapping[str, Any]) -> int | None:
    """The number of prompt messages; None when the record does not have it."""
    length = as_int(as_mapping(rollout.get("metadata")).get("prompt_length"))
    return length if length is not None and length > 0 else None


def one_line(value: str, limit: int = MAX_TITLE) -> str:
    line = " ".join(sanitize(value[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def rollout_messages(rollout: Mapping[str, Any]) -> list[Any]:
    """The conversation; for a sample without one, its prompt and response."""
    if "messages" in rollout:
        return as_list(rollout["messages"])
    pairs = (("user", rollout.get("prompt")), ("assistant", rollout.get("response")))
    return [{"role": role, "content": content} for role, content in pairs if content is not None]


def tool_counts(record: Mapping[str, Any]) -> dict[str, ToolCounts]:
    counts: dict[str, ToolCounts] = {}
    # Not every call in a conversation was made: worked examples have calls, too.
    names = (
        [
            (as_mapping(use).get("name"), as_mapping(use).get("error") is not None)
            for use in as_list(record["tool_uses"])
        ]
        if record.get("tool_uses") is not None
        else [(as_mapping(as_mapping(call).get("function")).get("name"), False) for call in _calls(record)]
    )
    for name, failed in names:
        word = _short_text(name) or "?"
        calls, errors = counts.get(word, (0, 0))
        counts[word] = ToolCounts(calls + 1, errors + failed)
    return counts


def search_text(record: Mapping[str, Any]) -> str:
    """All text of a rollout, for search, up to a limit."""
    parts: list[str] = []
    room = TEXT_LIMIT
    for part in _texts(record):
        if room <= 0:
            break
        parts.append(part[:room])
        room -= len(part)
    return sanitize("\n".join(parts))


def sanitize(value: str) -> str:
    """The text as a database accepts it: without NUL and lone surrogates."""
    if value.isascii():
        return value.replace("\0", "\ufffd")
    return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _user_request(rollout: Mapping[str, Any]) -> str | None:
    """The last user message of the prompt, since worked examples come before the task; else the first of all."""
    messages = [as_mapping(message) for message in rollout_messages(rollout)]
    answers = (index for index, message in enumerate(messages) if message.get("role") == "assistant")
    end = prompt_length(rollout) or next(answers, len(messages))
    requests = (message for message in [*reversed(messages[:end]), *messages[end:]] if message.get("role") == "user")
    return next(filter(None, ("".join(_content_texts(message.get("content"))) for message in requests)), None)


def _texts(rollout: Mapping[str, Any]) -> Iterator[str]:
    for message in rollout_messages(rollout):
        if not isinstance(message, Mapping):
            yield to_text(message)
            continue
        yield from _content_texts(message.get("content"))
        yield from (reasoning for name in REASONING_FIELDS if (reasoning := as_str(message.get(name))))
        for call in as_list(message.get("tool_calls")):
            function = as_mapping(as_mapping(call).get("function"))
            yield from (to_text(function[name]) for name in ("name", "arguments") if function.get(name))
    if failure := as_str(as_mapping(rollout.get("failure")).get("message")):
        yield failure
    if item := as_str(rollout.get("item_id")):
        yield item


def _content_texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    else:
        yield from (text for part in as_list(content) if (text := as_str(as_mapping(part).get("text"))))


def _calls(rollout: Mapping[str, Any]) -> Iterator[Any]:
    for message in rollout_messages(rollout):
        yield from as_list(as_mapping(message).get("tool_calls"))


def _short_text(value: Any) -> str | None:
    return None if value is None else sanitize(to_text(value)[:MAX_WORD])


# Han, kana and hangul have no spaces between words, so they are indexed character by character.
UNSPACED = re.compile("([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff])")


def space_cjk(value: str) -> str:
    return value if value.isascii() else UNSPACED.sub(r" \1 ", value)
