"""What every reader of traces produces: events, and the traces that they make up.

Always true: the messages of an event are in OpenAI's form, so that what follows (redaction, joining, grouping) needs no
knowledge of a format.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from hermes_rl.core import fast_json
from hermes_rl.core.messages import Message
from hermes_rl.core.trajectory import Rollout, StopReason, Usage
from hermes_rl.interop.atif import number

NEITHER = "neither a JSON object nor a list"
_STOP_REASONS = {
    "length": StopReason.LENGTH,
    "max_tokens": StopReason.LENGTH,
    "content_filter": StopReason.CONTENT_FILTER,
    "refusal": StopReason.CONTENT_FILTER,
}


class Place(NamedTuple):
    """A line of a file, or an element of a list in it, counted from 1."""

    path: Path
    number: int

    def __str__(self) -> str:
        return f"{self.path.name}:{self.number}"

    @property
    def key(self) -> str:
        """Distinct for files of the same name."""
        return f"{self.path}:{self.number}"


class Event(NamedTuple):
    """A part of a conversation: mostly one call with its answer. `order` sorts within the conversation."""

    conversation: str
    order: str
    content: dict[str, Any]


@dataclass(slots=True)
class Trace:
    """One conversation. `fields` is whatever else the source has: its ids, metadata and scores."""

    messages: list[Message]
    tools: list[Mapping[str, Any]] = field(default_factory=list)
    model: str = ""
    time: str = ""
    finish: str = ""
    usage: Usage = field(default_factory=Usage)
    fields: dict[str, Any] = field(default_factory=dict)
    rollout: Rollout | None = None
    document: Mapping[str, Any] | None = None
    """An ATIF document that hermes-rl wrote, to be put back into its own group."""

    @property
    def prompt_length(self) -> int:
        """The number of messages before the agent's first."""
        roles = [message.get("role") for message in self.messages]
        return roles.index("assistant") if "assistant" in roles else len(roles)

    @property
    def stop_reason(self) -> StopReason | None:
        """The reason that the source names, if it is one of ours."""
        return _STOP_REASONS.get(self.finish)


class TraceFormat(Protocol):
    """A reader of one format. A ValueError names what is wrong with a record."""

    name: str
    about: str

    def matches(self, record: Mapping[str, Any]) -> bool:
        """Whether this is a record of the format."""
        ...

    def events(self, record: Mapping[str, Any], place: Place) -> Iterable[Event]:
        """The events of a record."""
        ...

    def traces(self, contents: Sequence[dict[str, Any]]) -> Iterator[Trace]:
        """The traces of one conversation, from the contents of its events in order."""
        ...


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def rest(record: Mapping[str, Any], read: Collection[str]) -> dict[str, Any]:
    """The fields of a record that were not read as messages."""
    return {key: value for key, value in record.items() if key not in read}


def text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def parsed(value: Any) -> Any:
    """A value that may be JSON in a string."""
    if not isinstance(value, str) or value.lstrip()[:1] not in {"{", "["}:
        return value
    try:
        return fast_json.loads(value)
    except ValueError:
        return value


def first(source: Mapping[str, Any], *names: str) -> Any:
    """The first of these fields that has a value: exports spell one name in several ways."""
    return next((source[name] for name in names if source.get(name) is not None), None)


def lookup(fields: Mapping[str, Any], path: str) -> Any:
    """The value at a path such as `metadata.task`, also if a name contains dots; None if there is none."""
    if path in fields:
        return fields[path]
    head, dot, rest = path.partition(".")
    while dot:
        if isinstance(inner := fields.get(head), Mapping) and (found := lookup(inner, rest)) is not None:
            return found
        name, dot, rest = rest.partition(".")
        head = f"{head}.{name}"
    return None


def count(value: Any) -> int | None:
    found = number(value)
    return None if found is None else int(found)
