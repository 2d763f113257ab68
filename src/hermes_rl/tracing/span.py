"""Spans as the code that works makes them: begun, given attributes, ended, and put in a queue as plain tuples.

Always true: a span begins inside the current one and is current in its block, in tasks started there too. Where none is
current, `span` gives NOTHING, which does nothing. What a span is called and which attributes every one of its kind has
is decided where it is exported (`conventions`), so that here it costs two microseconds and no more.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from itertools import count
from random import Random
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeAlias

from hermes_rl.errors import WorldError

Attributes: TypeAlias = dict[str, Any]
Given: TypeAlias = Attributes | tuple[Any, ...] | None
"""Attributes by name, or the values alone in the order of `conventions.FIELDS`, which is cheaper."""
# Not the module's: `setup` seeds that one, and two processes would draw the same numbers.
_chance = Random()
# Spans of one process are numbered one after the other, from anywhere: drawing each costs three times as much.
_next_id = count(_chance.getrandbits(63) + 1).__next__
_now = time.time_ns


class Record(NamedTuple):
    """A span that has ended. `trace` is in hexadecimal, times are in nanoseconds since 1970."""

    trace: str
    id: int
    parent: int
    what: str
    began: int
    ended: int
    attributes: Given
    error: str | None


class Keeping(Protocol):
    """Who takes spans that have ended."""

    share: float
    """Of the groups, how many are traced, from 0 to 1."""
    content: bool
    """Whether the words of messages may be exported."""

    @property
    def keep(self) -> Callable[[tuple[Any, ...]], object]:
        """Takes a Record as a tuple."""
        ...


class Scope:
    """One trace, in this process."""

    __slots__ = ("content", "keep", "keeping", "trace")

    def __init__(self, keeping: Keeping, trace: str) -> None:
        self.keeping = keeping
        self.keep = keeping.keep
        self.content = keeping.content
        self.trace = trace


class TracedSpan:
    """Use as `with`. An exception that leaves the block is the span's error."""

    __slots__ = ("_token", "attributes", "began", "error", "id", "parent", "scope", "what")
    on: Literal[True] = True

    def __init__(self, scope: Scope, parent: int, what: str, attributes: Given = None) -> None:
        self.scope = scope
        self.parent = parent
        self.what = what
        self.attributes = attributes
        self.error: str | None = None
        self.id = _next_id()
        self.began = _now()

    def __enter__(self) -> Self:
        self._token: Token[TracedSpan | None] = _current.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _current.reset(self._token)
        if error is not None and self.error is None:
            self.error = error_type(error)
        scope = self.scope
        scope.keep((scope.trace, self.id, self.parent, self.what, self.began, _now(), self.attributes, self.error))

    def again(self, attributes: Given = None) -> None:
        """End here, and be the next of its kind: the rounds of a loop, for half of what a span each would cost."""
        scope, now = self.scope, _now()
        scope.keep((scope.trace, self.id, self.parent, self.what, self.began, now, self.attributes, self.error))
        self.id, self.began, self.attributes, self.error = _next_id(), now, attributes, None

    def note(self, **attributes: Any) -> None:
        """Add attributes by name; values that were given without names are replaced."""
        self.attributes = {**self.attributes, **attributes} if isinstance(self.attributes, dict) else attributes

    @property
    def content(self) -> bool:
        """Whether the words of messages may be attributes."""
        return self.scope.content

    @property
    def traceparent(self) -> str:
        """As W3C's Trace Context has it."""
        return f"00-{self.scope.trace}-{self.id:016x}-01"


class _Nothing:
    """No span."""

    __slots__ = ()
    on: Literal[False] = False
    content = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def again(self, attributes: Given = None) -> None:
        """There was none."""

    def note(self, **attributes: Any) -> None:
        """Nobody reads them."""


Span: TypeAlias = TracedSpan | _Nothing
NOTHING = _Nothing()
_current: ContextVar[TracedSpan | None] = ContextVar("current_span", default=None)
_NO_HEADERS: Mapping[str, str] = {}
# The kinds of spans that wait for another process, and whose number that process is told.
CLIENTS = frozenset({"chat", "deliver", "lease", "acknowledge", "release"})


def span(what: str, attributes: Given = None) -> Span:
    """A span inside the current one; NOTHING where tracing is off. Ask `on` before costly attributes are made."""
    parent = _current.get()
    return NOTHING if parent is None else TracedSpan(parent.scope, parent.id, what, attributes)


@contextmanager
def group_span(attributes: Attributes) -> Iterator[Span]:
    """The span of a group: of a share of the groups only, where one is set; nothing inside the others is traced."""
    parent = _current.get()
    if parent is None:
        yield NOTHING
        return
    if _chance.random() < parent.scope.keeping.share:
        with TracedSpan(parent.scope, parent.id, "group", attributes) as begun:
            yield begun
        return
    with within(None):
        yield NOTHING


@contextmanager
def within(parent: TracedSpan | None) -> Iterator[None]:
    """Within this block that span is current, whoever began it; None: tracing is off."""
    token = _current.set(parent)
    try:
        yield
    finally:
        _current.reset(token)


def current_span() -> TracedSpan | None:
    return _current.get()


def current_scope() -> Scope | None:
    """The trace that is being written here; None where tracing is off."""
    current = _current.get()
    return None if current is None else current.scope


def headers() -> Mapping[str, str]:
    """What tells another process of the current span; nothing unless that span waits for it."""
    current = _current.get()
    return {"traceparent": current.traceparent} if current is not None and current.what in CLIENTS else _NO_HEADERS


def remote_span(keeping: Keeping, traceparent: str | None, what: str, attributes: Attributes) -> Span:
    """A span whose parent is in another process; NOTHING unless the caller traces."""
    told = read_traceparent(traceparent)
    return NOTHING if told is None else TracedSpan(Scope(keeping, told[0]), told[1], what, attributes)


def read_traceparent(text: str | None) -> tuple[str, int] | None:
    """The trace and the span it names; None for one that is not there, not whole, or not traced."""
    version, trace, parent, flags, *_ = [*(text or "").strip().lower().split("-"), "", "", "", ""]
    try:
        numbers = int(version, 16), int(trace, 16), int(parent, 16), int(flags, 16)
    except ValueError:
        return None
    whole = (len(version), len(trace), len(parent), len(flags)) == (2, 32, 16, 2) and version != "ff"
    return (trace, numbers[2]) if whole and numbers[1] and numbers[2] and numbers[3] & 1 else None


def new_trace() -> str:
    return f"{_chance.getrandbits(128) or 1:032x}"


def new_id() -> int:
    return _next_id()


def error_type(error: BaseException) -> str:
    """A stable word for what went wrong, without any of its text."""
    return str(error.failure) if isinstance(error, WorldError) else type(error).__name__
