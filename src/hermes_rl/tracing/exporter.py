"""The exporter process: reads finished spans from stdin and sends them to a collector over OTLP.

    python -m hermes_rl.tracing.exporter

Always true: it exits within seconds after its input ends, whatever the collector does; its stdout has one JSON object
per line, for the Tracer that started it.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import orjson

from hermes_rl.core import fast_json
from hermes_rl.tracing import conventions
from hermes_rl.tracing.span import SpanRecord
from hermes_rl.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

# After the end of input; the Tracer waits equally long.
SHUTDOWN_SECONDS = 5.0
SCOPE = "hermes_rl"
MAX_TEXT = 64_000


class SpanExporter(Protocol):
    def export(self, spans: "Sequence[ReadableSpan]") -> Any: ...

    def shutdown(self) -> None: ...


def to_otel_spans(records: Iterable[Sequence[Any]], resource: "Resource") -> "list[ReadableSpan]":
    """Convert records to SDK spans."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
    from opentelemetry.trace.status import Status, StatusCode

    scope, flags = InstrumentationScope(SCOPE, __version__), TraceFlags(TraceFlags.SAMPLED)
    spans = []
    for record in map(SpanRecord._make, records):
        exported = conventions.span_attributes(record.operation, record.attributes)
        attributes = {name: attribute_value(value) for name, value in exported.attributes.items()}
        if record.error is not None:
            attributes["error.type"] = record.error
        trace = int(record.trace, 16)
        spans.append(
            ReadableSpan(
                name=exported.name,
                context=SpanContext(trace, record.id, is_remote=False, trace_flags=flags),
                parent=SpanContext(trace, record.parent, is_remote=False, trace_flags=flags) if record.parent else None,
                resource=resource,
                attributes=attributes,
                kind=SpanKind[exported.kind.value],
                status=Status(StatusCode.ERROR if record.error is not None else StatusCode.UNSET),
                start_time=record.began,
                end_time=record.ended,
                instrumentation_scope=scope,
            )
        )
    return spans


def attribute_value(value: Any) -> Any:
    """A valid attribute value: text, numbers and lists of text as they are, anything else as JSON."""
    if isinstance(value, bool | int | float):
        return value if not isinstance(value, int) or abs(value) < 2**63 else str(value)
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    return fast_json.dumps(value).decode()[:MAX_TEXT]


def export_all(lines: Iterable[bytes], resource: "Resource", exporter: SpanExporter) -> int:
    """Send every batch and return the number of delivered spans. A failed batch is reported and dropped."""
    delivered = 0
    for line in lines:
        batch = orjson.loads(line)
        try:
            result = exporter.export(to_otel_spans(batch, resource))
        except Exception as error:  # noqa: BLE001 (the next batch is tried after any failure)
            report({"problem": f"cannot export spans: {type(error).__name__}: {error}"})
            continue
        if getattr(result, "name", "") == "SUCCESS":
            delivered += len(batch)
    return delivered


def report(message: Mapping[str, Any]) -> None:
    sys.stdout.buffer.write(fast_json.dumps(message) + b"\n")
    sys.stdout.buffer.flush()


class _ReportHandler(logging.Handler):
    """Reports the SDK's first log message, which says why spans are not delivered."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(logging.WARNING)
        self._endpoint, self._reported = endpoint, False

    def emit(self, record: logging.LogRecord) -> None:
        if not self._reported:
            self._reported = True
            report({"problem": f"spans do not reach {self._endpoint}: {record.getMessage()[:300]}"})


def main(source: BinaryIO) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    [settings] = fast_json.loads(next(iter(source)))
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
    except ImportError as error:
        report({"problem": f"traces need the extra otel ({error}): pip install 'hermes-rl[otel]'"})
        return 1
    root = logging.getLogger()
    root.handlers = [_ReportHandler(settings["endpoint"])]
    resource = Resource.create({**settings["resource"], "service.name": settings["service"]})
    exporter = OTLPSpanExporter(endpoint=settings["endpoint"], timeout=settings["timeout"])
    report({"ready": True})
    # Rollouts have priority from here on.
    with suppress(OSError):
        os.nice(5)
    delivered = export_all(_lines_until_eof(source), resource, exporter)
    exporter.shutdown()  # type: ignore[no-untyped-call]
    report({"delivered": delivered})
    return 0


def _lines_until_eof(source: BinaryIO) -> Iterable[bytes]:
    while line := source.readline():
        yield line
    # A collector that does not answer must not keep the process alive.
    timer = threading.Timer(SHUTDOWN_SECONDS, os._exit, [1])
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    sys.exit(main(sys.stdin.buffer))
