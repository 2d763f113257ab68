"""Spans: created, given attributes, finished, and queued as plain tuples.

Always true: a span is a child of the current one and is current in its block, including tasks started there. Without a
current span, `span` returns NO_SPAN, which does nothing. Exported names and fixed attributes are added by the exporter
(`conventions`), so a span costs only two microseconds here.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from itertools import count
from random import Random
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeAlias

from hermes_rl.core.errors import InfrastructureError

Attributes: TypeAlias = dict[str, Any]
SpanValues: TypeAlias = Attributes | tuple[Any, ...] | None
"""Attributes by name, or bare values in the order of `conventions.FIELDS`, which is cheaper."""
# Not the global generator: environments seed that one, and two processes would draw the same ids.
_random = Random()
# Consecutive ids from a random start: drawing each id costs three times as much.
_next_id = count(_random.getrandbits(63) + 1).__next__
_now = time.time_ns


class SpanRecord(NamedTuple):
    """A finished span. `trace` is in hexadecimal, times are in nanoseconds since 1970."""

    trace: str
    id: int
    parent: int
    operation: str
    began: int
    ended: int
    attributes: SpanValues
    error: str | None


class SpanSink(Protocol):
    """Receives finished spans."""

    sample_rate: float
    """Share of groups to trace, from 0 to 1."""
    content: bool
    """Whether message content may be exported."""

    @property
    def put(self) -> Callable[[tuple[Any, ...]], object]:
        """Queue a SpanRecord, passed as a tuple."""
        ...


class Trace:
    """One trace, in this process."""

    __slots__ = ("content", "id", "put", "sink")

    def __init__(self, sink: SpanSink, trace_id: str) -> None:
        self.sink = sink
        self.put = sink.put
        self.content = sink.content
        self.id = trace_id


class TracedSpan:
    """Use as `with`. An exception that leaves the block becomes the span's error."""

    __slots__ = ("_token", "attributes", "began", "error", "id", "operation", "parent", "trace")
    on: Literal[True] = True

    def __init__(self, trace: Trace, parent: int, operation: str, attributes: SpanValues = None) -> None:
        self.trace = trace
        self.parent = parent
        self.operation = operation
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
        trace = self.trace
        trace.put((trace.id, self.id, self.parent, self.operation, self.began, _now(), self.attributes, self.error))

    def restart(self, attributes: SpanValues = None) -> None:
        """Finish this span and start the next of the same operation: for loops, at half the cost of new spans."""
        trace, now = self.trace, _now()
        trace.put((trace.id, self.id, self.parent, self.operation, self.began, now, self.attributes, self.error))
        self.id, self.began, self.attributes, self.error = _next_id(), now, attributes, None

    def set_attributes(self, **attributes: Any) -> None:
        """Add attributes by name; replaces bare values."""
        self.attributes = {**self.attributes, **attributes} if isinstance(self.attributes, dict) else attributes

    @property
    def content(self) -> bool:
        """Whether message content may be set as attributes."""
        return self.trace.content

    @property
    def traceparent(self) -> str:
        """In W3C Trace Context format."""
        return f"00-{self.trace.id}-{self.id:016x}-01"


class _NoSpan:
    """The span when tracing is off."""

    __slots__ = ()
    on: Literal[False] = False
    content = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def restart(self, attributes: SpanValues = None) -> None:
        """Do nothing."""

    def set_attributes(self, **attributes: Any) -> None:
        """Do nothing."""


Span: TypeAlias = TracedSpan | _NoSpan
NO_SPAN = _NoSpan()
_current: ContextVar[TracedSpan | None] = ContextVar("current_span", default=None)
_NO_HEADERS: Mapping[str, str] = {}
# Operations that wait for another process and pass it their trace context.
CLIENT_SPANS = frozenset({"chat", "deliver", "lease", "acknowledge", "release"})


def span(operation: str, attributes: SpanValues = None) -> Span:
    """A child of the current span; NO_SPAN if tracing is off. Check `on` before computing costly attributes."""
    parent = _current.get()
    return NO_SPAN if parent is None else TracedSpan(parent.trace, parent.id, operation, attributes)


@contextmanager
def group_span(attributes: Attributes) -> Iterator[Span]:
    """The span of a group, if it is sampled; nothing inside an unsampled group is traced."""
    parent = _current.get()
    if parent is None:
        yield NO_SPAN
        return
    if _random.random() < parent.trace.sink.sample_rate:
        with TracedSpan(parent.trace, parent.id, "group", attributes) as begun:
            yield begun
        return
    with use_span(None):
        yield NO_SPAN


@contextmanager
def use_span(parent: TracedSpan | None) -> Iterator[None]:
    """Make `parent` the current span in this block; None turns tracing off."""
    token = _current.set(parent)
    try:
        yield
    finally:
        _current.reset(token)


def current_span() -> TracedSpan | None:
    return _current.get()


def current_trace() -> Trace | None:
    """The current trace; None if tracing is off."""
    current = _current.get()
    return None if current is None else current.trace


def headers() -> Mapping[str, str]:
    """Trace context headers for a request; empty unless the current span is a client span."""
    current = _current.get()
    return (
        {"traceparent": current.traceparent}
        if current is not None and current.operation in CLIENT_SPANS
        else _NO_HEADERS
    )


def remote_span(sink: SpanSink, traceparent: str | None, operation: str, attributes: Attributes) -> Span:
    """A span with its parent in another process; NO_SPAN unless the caller traces."""
    parent = read_traceparent(traceparent)
    return NO_SPAN if parent is None else TracedSpan(Trace(sink, parent[0]), parent[1], operation, attributes)


def read_traceparent(text: str | None) -> tuple[str, int] | None:
    """The trace and span id; None if it is missing, malformed or not sampled."""
    version, trace, parent, flags, *_ = [*(text or "").strip().lower().split("-"), "", "", "", ""]
    try:
        numbers = int(version, 16), int(trace, 16), int(parent, 16), int(flags, 16)
    except ValueError:
        return None
    valid = (len(version), len(trace), len(parent), len(flags)) == (2, 32, 16, 2) and version != "ff"
    return (trace, numbers[2]) if valid and numbers[1] and numbers[2] and numbers[3] & 1 else None


def new_trace() -> str:
    return f"{_random.getrandbits(128) or 1:032x}"


def new_id() -> int:
    return _next_id()


def error_type(error: BaseException) -> str:
    """A stable error name without the message."""
    return str(error.failure) if isinstance(error, InfrastructureError) else type(error).__name__
