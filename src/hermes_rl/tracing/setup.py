"""Sets up tracing: from `--trace` and OpenTelemetry's variables to a Tracer and the root span of a process.

Always true: the variables are read only here. A process started by a traced process joins its trace through
TRACEPARENT.
"""

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Self

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.secrets import resolve_secret
from hermes_rl.tracing.span import NO_SPAN, Attributes, Span, Trace, TracedSpan, new_id, new_trace, read_traceparent
from hermes_rl.version import __version__

if TYPE_CHECKING:
    from hermes_rl.tracing.tracer import Tracer

PATH = "/v1/traces"
TRACEPARENT = "TRACEPARENT"
SAMPLE_RATE, CONTENT = "OTEL_TRACES_SAMPLER_ARG", "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


@dataclass(frozen=True, slots=True)
class Tracing:
    """`sample_rate` is the share of groups to trace; `content` exports message content."""

    endpoint: str
    sample_rate: float = 1.0
    content: bool = False
    service: str = "hermes-rl"
    parent: str | None = None

    @classmethod
    def from_option(cls, trace: str | None, variables: Mapping[str, str] | None = None) -> Self | None:
        """Read `--trace` and the variables; None if it is not set. Raises ConfigError for invalid values."""
        if not trace:
            return None
        environ = os.environ if variables is None else variables
        endpoint = resolve_secret(trace, "--trace").rstrip("/")
        if not endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                f"--trace {trace}: give the OTLP/HTTP address of a collector, such as http://localhost:4318"
            )
        if find_spec("opentelemetry") is None:
            raise ConfigError("--trace needs the extra otel: pip install 'hermes-rl[otel]'")
        return cls(
            endpoint if endpoint.endswith(PATH) else endpoint + PATH,
            _sample_rate(environ.get(SAMPLE_RATE, "")),
            environ.get(CONTENT, "").strip().lower() in {"true", "1"},
            environ.get("OTEL_SERVICE_NAME") or "hermes-rl",
            environ.get(TRACEPARENT),
        )


@contextmanager
def traced(
    tracing: Tracing | None, operation: str, attributes: Attributes, report: Callable[[str], None] | None = None
) -> Iterator[Span]:
    """The root span of this process; NO_SPAN if tracing is off. Spans are delivered at its end."""
    if tracing is None:
        yield NO_SPAN
        return
    with open_tracer(tracing, operation, report) as tracer:
        trace, parent = read_traceparent(tracing.parent) or (new_trace(), 0)
        with TracedSpan(Trace(tracer, trace), parent, operation, attributes) as span:
            yield span


def export_span(
    tracing: Tracing | None,
    traceparent: str,
    operation: str,
    *,
    began: float,
    attributes: Attributes,
    error: str | None = None,
    report: Callable[[str], None] | None = None,
) -> None:
    """Export a span that ends now, with an id assigned earlier; `began` is in Unix seconds."""
    identity = read_traceparent(traceparent)
    if tracing is None or identity is None:
        return
    parent = read_traceparent(tracing.parent)
    with open_tracer(tracing, operation, report) as tracer:
        # A supervisor started by a shim has the run's own span as parent.
        trace, span_id = identity
        parent_id = parent[1] if parent is not None and parent[0] == trace and parent[1] != span_id else 0
        tracer.put((*identity, parent_id, operation, int(began * 1e9), time.time_ns(), attributes, error))


def new_traceparent() -> str:
    """Assign the id of a future span; in the trace of the parent process, if it traces."""
    parent = read_traceparent(os.environ.get(TRACEPARENT))
    return f"00-{parent[0] if parent else new_trace()}-{new_id():016x}-01"


def open_tracer(tracing: Tracing, operation: str, report: Callable[[str], None] | None = None) -> "Tracer":
    # Imported here: code with spans but no tracer, such as sandboxes, needs only the standard library.
    from hermes_rl.tracing.tracer import ExportConfig, Tracer

    resource = {
        "service.version": __version__,
        "service.instance.id": f"{platform.node()}-{os.getpid()}",
        "process.pid": os.getpid(),
        "hermes_rl.part": operation,
    }
    return Tracer(
        ExportConfig(tracing.endpoint, tracing.service, resource),
        sample_rate=tracing.sample_rate,
        content=tracing.content,
        report=report,
    )


def _sample_rate(text: str) -> float:
    if not text.strip():
        return 1.0
    try:
        sample_rate = float(text)
    except ValueError:
        sample_rate = -1.0
    if not 0 <= sample_rate <= 1:
        raise ConfigError(f"{SAMPLE_RATE}={text}: the share of groups to trace is a number from 0 to 1")
    return sample_rate
