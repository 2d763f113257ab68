"""The exporter's process: reads spans that have ended from its standard input, and sends them to a collector by OTLP.

    python -m hermes_rl.tracing.exporter

Always true: it ends when its input does, within seconds, whatever the collector does; what it says on standard output
are JSON objects, a line each, for the Tracer that started it.
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

from hermes_rl import jsontext
from hermes_rl.tracing import conventions
from hermes_rl.tracing.span import Record
from hermes_rl.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

# After the end of the input; the Tracer waits no longer either.
LAST_SECONDS = 5.0
SCOPE = "hermes_rl"
LONGEST_TEXT = 64_000


class SpanExporter(Protocol):
    def export(self, spans: "Sequence[ReadableSpan]") -> Any: ...

    def shutdown(self) -> None: ...


def readable(records: Iterable[Sequence[Any]], resource: "Resource") -> "list[ReadableSpan]":
    """Spans as the SDK has them."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
    from opentelemetry.trace.status import Status, StatusCode

    scope, flags = InstrumentationScope(SCOPE, __version__), TraceFlags(TraceFlags.SAMPLED)
    spans = []
    for record in map(Record._make, records):
        told = conventions.told(record.what, record.attributes)
        attributes = {name: plain(value) for name, value in told.attributes.items()}
        if record.error is not None:
            attributes["error.type"] = record.error
        trace = int(record.trace, 16)
        spans.append(
            ReadableSpan(
                name=told.name,
                context=SpanContext(trace, record.id, is_remote=False, trace_flags=flags),
                parent=SpanContext(trace, record.parent, is_remote=False, trace_flags=flags) if record.parent else None,
                resource=resource,
                attributes=attributes,
                kind=SpanKind[told.kind.value],
                status=Status(StatusCode.ERROR if record.error is not None else StatusCode.UNSET),
                start_time=record.began,
                end_time=record.ended,
                instrumentation_scope=scope,
            )
        )
    return spans


def plain(value: Any) -> Any:
    """As an attribute may be: text, numbers, and lists of text; anything else as JSON."""
    if isinstance(value, bool | int | float):
        return value if not isinstance(value, int) or abs(value) < 2**63 else str(value)
    if isinstance(value, str):
        return value[:LONGEST_TEXT]
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return value
    return jsontext.dumps(value).decode()[:LONGEST_TEXT]


def export_all(lines: Iterable[bytes], resource: "Resource", exporter: SpanExporter) -> int:
    """Send every batch; how many spans were delivered. A batch that is not delivered is said and let go."""
    delivered = 0
    for line in lines:
        batch = orjson.loads(line)
        try:
            result = exporter.export(readable(batch, resource))
        except Exception as error:  # noqa: BLE001 (whatever a collector or a record does, the next batch is tried)
            say({"problem": f"spans cannot be exported: {type(error).__name__}: {error}"})
            continue
        if getattr(result, "name", "") == "SUCCESS":
            delivered += len(batch)
    return delivered


def say(told: Mapping[str, Any]) -> None:
    sys.stdout.buffer.write(jsontext.dumps(told) + b"\n")
    sys.stdout.buffer.flush()


class _Saying(logging.Handler):
    """What the SDK logs is why spans are not delivered."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(logging.WARNING)
        self._endpoint, self._said = endpoint, False

    def emit(self, record: logging.LogRecord) -> None:
        if not self._said:
            self._said = True
            say({"problem": f"spans do not reach {self._endpoint}: {record.getMessage()[:300]}"})


def main(source: BinaryIO) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    [settings] = jsontext.loads(next(iter(source)))
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
    except ImportError as error:
        say({"problem": f"traces need the extra otel ({error}): pip install 'hermes-rl[otel]'"})
        return 1
    root = logging.getLogger()
    root.handlers = [_Saying(settings["endpoint"])]
    resource = Resource.create({**settings["resource"], "service.name": settings["service"]})
    exporter = OTLPSpanExporter(endpoint=settings["endpoint"], timeout=settings["timeout"])
    say({"ready": True})
    # From here on rollouts come first.
    with suppress(OSError):
        os.nice(5)
    delivered = export_all(_until_the_end(source), resource, exporter)
    exporter.shutdown()  # type: ignore[no-untyped-call]
    say({"delivered": delivered})
    return 0


def _until_the_end(source: BinaryIO) -> Iterable[bytes]:
    while line := source.readline():
        yield line
    # Nothing more comes; a collector that does not answer must not keep us.
    timer = threading.Timer(LAST_SECONDS, os._exit, [1])
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    sys.exit(main(sys.stdin.buffer))
