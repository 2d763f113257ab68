"""A collector of traces: takes OTLP over HTTP as a real one does, reads the protobuf, and keeps every span."""

import gzip
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """A span as it came over the wire; `part` is the process that sent it."""

    name: str
    trace: str
    id: str
    parent: str
    part: str
    attributes: dict[str, Any]
    seconds: float
    error: bool


@dataclass
class TraceCollector:
    """Use as `with`; `url` is what `--trace` takes. `status` is what it answers."""

    status: int = 200
    spans: list[ReceivedSpan] = field(default_factory=list)

    def __enter__(self) -> Self:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
                if collector.status == 200:
                    collector.spans += received(ExportTraceServiceRequest.FromString(body))
                self.send_response(collector.status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.05])
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def roots(self) -> list[ReceivedSpan]:
        return [span for span in self.spans if not span.parent]

    @property
    def orphans(self) -> list[ReceivedSpan]:
        """Those whose parent never came."""
        known = {(span.trace, span.id) for span in self.spans}
        return [span for span in self.spans if span.parent and (span.trace, span.parent) not in known]

    def names(self) -> Counter[str]:
        return Counter(span.name for span in self.spans)

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]

    def parent_of(self, span: ReceivedSpan) -> ReceivedSpan:
        [parent] = [one for one in self.spans if one.id == span.parent]
        return parent


def received(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for resource in request.resource_spans:
        about = {one.key: _value(one.value) for one in resource.resource.attributes}
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    str(about.get("hermes_rl.part", "")),
                    {one.key: _value(one.value) for one in span.attributes},
                    (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                    span.status.code == 2,
                )


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind) if kind else None
