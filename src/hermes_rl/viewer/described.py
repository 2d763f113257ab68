"""What a list shows of a group and of its rollouts, and the words they are found by.

Always true: it is made from any record without raising, since records are other people's; what a record does not say
is None.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hermes_rl.viewer.lenient import mapping, number, sequence, shown, text, whole

# As many rollouts as an id has room for, see `rollout_number`.
NUMBER_BITS = 16
MOST_ROLLOUTS = 1 << NUMBER_BITS
TITLE = 140
WORD = 200
TEXT_LIMIT = 16_000_000
TITLES = ("title", "prompt", "question", "instruction", "task", "problem", "query", "name", "input")
REASONING = ("reasoning_content", "reasoning", "thinking")


class Counted(NamedTuple):
    calls: int
    errors: int


@dataclass(frozen=True, slots=True)
class RolloutEntry:
    """One rollout. `offset` and `length` are where its own JSON stands in a large line of a file, else None."""

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
    tools: Mapping[str, Counted]
    words: str
    offset: int | None = None
    length: int | None = None


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """One group: `number` is its line in a file or its place in a store, and its name in an address."""

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
    """`about` is the group without its rollouts, `first` the first of those; `at` is number, offset and length."""
    provenance = mapping(about.get("provenance"))
    return GroupEntry(
        *at,
        id=_word(about.get("id")) or "",
        item_id=_word(about.get("item_id")) or _word(first.get("item_id")),
        title=title_of(about.get("item", first.get("item")), first),
        draw=whole(about.get("draw")),
        split=_word(about.get("split")),
        created_at=_word(about.get("created_at")),
        withheld=_word(about.get("withheld")),
        environment=_word(provenance.get("environment")),
        model=_word(provenance.get("model")),
        rollouts=rollouts,
    )


def describe_rollout(
    said: Mapping[str, Any], position: int, versions: tuple[int | None, int | None], span: tuple[int, int] | None = None
) -> RolloutEntry:
    offset, length = span or (None, None)
    index = whole(said.get("index"))
    score = number(said.get("score", said.get("reward")))
    return RolloutEntry(
        position=position,
        index=position if index is None else index,
        score=None if score is None else float(score),
        failure=failure_of(said),
        stop_reason=_word(said.get("stop_reason")),
        withheld=_word(said.get("withheld")),
        turns=whole(said.get("turns_used")),
        completion_tokens=whole(mapping(said.get("usage")).get("completion_tokens")),
        seconds=number(said.get("seconds")),
        version_low=versions[0],
        version_high=versions[1],
        tools=tools_of(said),
        words=words_of(said),
        offset=offset,
        length=length,
    )


def failure_of(said: Mapping[str, Any]) -> str | None:
    failure = said.get("failure")
    if failure is None:
        return None
    told = mapping(failure)
    return _word(f"{told.get('whose', 'unknown')}/{told.get('cause', 'unknown')}") if told else _word(shown(failure))


def title_of(item: Any, rollout: Mapping[str, Any]) -> str:
    """A line to know the item by: what it calls its task, else what the policy was asked."""
    if isinstance(item, str):
        return one_line(item)
    named = (text(mapping(item).get(name)) for name in TITLES)
    if found := next(filter(None, named), None):
        return one_line(found)
    return one_line(_asked(rollout) or (shown(item) if item else ""))


def prompt_length(rollout: Mapping[str, Any]) -> int | None:
    """How many messages the policy began with; None where the record does not say."""
    said = whole(mapping(rollout.get("metadata")).get("prompt_length"))
    return said if said is not None and said > 0 else None


def one_line(value: str, most: int = TITLE) -> str:
    line = " ".join(clean(value[: 4 * most]).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def messages_of(rollout: Mapping[str, Any]) -> list[Any]:
    """The conversation; of a sample that has none, its prompt and its response."""
    if "messages" in rollout:
        return sequence(rollout["messages"])
    pairs = (("user", rollout.get("prompt")), ("assistant", rollout.get("response")))
    return [{"role": role, "content": said} for role, said in pairs if said is not None]


def tools_of(said: Mapping[str, Any]) -> dict[str, Counted]:
    counts: dict[str, Counted] = {}
    uses = sequence(said.get("tool_uses"))
    names = (
        [(mapping(use).get("name"), mapping(use).get("error") is not None) for use in uses]
        if uses
        else [(mapping(mapping(call).get("function")).get("name"), False) for call in _calls(said)]
    )
    for name, failed in names:
        word = _word(name) or "?"
        calls, errors = counts.get(word, (0, 0))
        counts[word] = Counted(calls + 1, errors + failed)
    return counts


def words_of(said: Mapping[str, Any]) -> str:
    """All that was said in a rollout, for finding it, up to a limit."""
    parts: list[str] = []
    room = TEXT_LIMIT
    for part in _said(said):
        if room <= 0:
            break
        parts.append(part[:room])
        room -= len(part)
    return clean("\n".join(parts))


def clean(value: str) -> str:
    """As a database takes it: no NUL, no half of a surrogate pair."""
    if value.isascii():
        return value.replace("\0", "\ufffd")
    return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _asked(rollout: Mapping[str, Any]) -> str | None:
    """The last that a user said in the prompt, since worked examples stand before the task; else the first at all."""
    messages = [mapping(message) for message in messages_of(rollout)]
    answers = (place for place, message in enumerate(messages) if message.get("role") == "assistant")
    end = prompt_length(rollout) or next(answers, len(messages))
    asked = (message for message in [*reversed(messages[:end]), *messages[end:]] if message.get("role") == "user")
    return next(filter(None, ("".join(_content(message.get("content"))) for message in asked)), None)


def _said(rollout: Mapping[str, Any]) -> Iterator[str]:
    for message in messages_of(rollout):
        if not isinstance(message, Mapping):
            yield shown(message)
            continue
        yield from _content(message.get("content"))
        yield from (told for name in REASONING if (told := text(message.get(name))))
        for call in sequence(message.get("tool_calls")):
            function = mapping(mapping(call).get("function"))
            yield from (shown(function[name]) for name in ("name", "arguments") if function.get(name))
    if told := text(mapping(rollout.get("failure")).get("message")):
        yield told
    if item := text(rollout.get("item_id")):
        yield item


def _content(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    else:
        yield from (told for one in sequence(content) if (told := text(mapping(one).get("text"))))


def _calls(rollout: Mapping[str, Any]) -> Iterator[Any]:
    for message in messages_of(rollout):
        yield from sequence(mapping(message).get("tool_calls"))


def _word(value: Any) -> str | None:
    return None if value is None else clean(shown(value)[:WORD])


# Han, kana and hangul stand without spaces between words, and are found letter by letter.
UNSPACED = re.compile("([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff])")


def spaced(value: str) -> str:
    return value if value.isascii() else UNSPACED.sub(r" \1 ", value)
