"""Whoever takes spans in these tests: they are kept, and told as the SDK's in-memory exporter has them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hermes_rl.core import fast_json
from hermes_rl.tracing.exporter import export_all
from hermes_rl.tracing.span import Trace, TracedSpan, new_trace


class Kept:
    def __init__(self, *, sample_rate: float = 1.0, content: bool = False) -> None:
        self.sample_rate, self.content = sample_rate, content
        self.records: list[tuple[Any, ...]] = []
        self.put = self.records.append

    @contextmanager
    def root(self) -> Iterator[TracedSpan]:
        with TracedSpan(Trace(self, new_trace()), 0, "process", {"environment": "words"}) as span:
            yield span

    def exported(self) -> list[ReadableSpan]:
        """The spans, by the way they take from one process to the other."""
        memory = InMemorySpanExporter()
        lines = [fast_json.dumps([record]) + b"\n" for record in self.records]
        assert export_all(lines, Resource.create({"service.name": "hermes-rl"}), memory) == len(self.records)
        return list(memory.get_finished_spans())

    def by_name(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exported()}


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})
