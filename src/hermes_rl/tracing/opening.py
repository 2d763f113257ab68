"""Switching tracing on: from `--trace` and OpenTelemetry's own variables to a Tracer and the first span of a process.

Always true: the variables are read here and nowhere else. A process that was started by another that traces joins its
trace, by the variable TRACEPARENT.
"""

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Self

from hermes_rl.errors import ConfigError
from hermes_rl.secrets import resolved
from hermes_rl.tracing.span import NOTHING, Attributes, Scope, Span, TracedSpan, new_id, new_trace, read_traceparent
from hermes_rl.version import __version__

if TYPE_CHECKING:
    from hermes_rl.tracing.tracer import Tracer

PATH = "/v1/traces"
TRACEPARENT = "TRACEPARENT"
SHARE, CONTENT = "OTEL_TRACES_SAMPLER_ARG", "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


@dataclass(frozen=True, slots=True)
class Tracing:
    """Where traces go; `share` of the groups are traced, `content` lets the words of messages out."""

    endpoint: str
    share: float = 1.0
    content: bool = False
    service: str = "hermes-rl"
    parent: str | None = None

    @classmethod
    def of(cls, trace: str | None, variables: Mapping[str, str] | None = None) -> Self | None:
        """What `--trace` says, with the variables; None where it is not given. ConfigError when it cannot be."""
        if not trace:
            return None
        known = os.environ if variables is None else variables
        endpoint = resolved(trace, "--trace").rstrip("/")
        if not endpoint.startswith(("http://", "https://")):
            raise ConfigError(f"--trace {trace}: give a collector's OTLP/HTTP address, such as http://localhost:4318")
        if find_spec("opentelemetry") is None:
            raise ConfigError("--trace needs the extra otel: pip install 'hermes-rl[otel]'")
        return cls(
            endpoint if endpoint.endswith(PATH) else endpoint + PATH,
            _share(known.get(SHARE, "")),
            known.get(CONTENT, "").strip().lower() in {"true", "1"},
            known.get("OTEL_SERVICE_NAME") or "hermes-rl",
            known.get(TRACEPARENT),
        )


@contextmanager
def traced(
    tracing: Tracing | None, what: str, attributes: Attributes, report: Callable[[str], None] | None = None
) -> Iterator[Span]:
    """The first span of this process; NOTHING where tracing is off. Spans are delivered at its end."""
    if tracing is None:
        yield NOTHING
        return
    with opened(tracing, what, report) as tracer:
        trace, parent = read_traceparent(tracing.parent) or (new_trace(), 0)
        with TracedSpan(Scope(tracer, trace), parent, what, attributes) as span:
            yield span


def export_span(
    tracing: Tracing | None,
    traceparent: str,
    what: str,
    *,
    began: float,
    attributes: Attributes,
    error: str | None = None,
    report: Callable[[str], None] | None = None,
) -> None:
    """One span that ends now and whose number was given out before; `began` is in Unix seconds."""
    told = read_traceparent(traceparent)
    if tracing is None or told is None:
        return
    parent = read_traceparent(tracing.parent)
    with opened(tracing, what, report) as tracer:
        # A supervisor that a keeper started has the run's own span for its parent.
        inside = parent[1] if parent is not None and parent[0] == told[0] and parent[1] != told[1] else 0
        tracer.keep((*told, inside, what, int(began * 1e9), time.time_ns(), attributes, error))


def new_traceparent() -> str:
    """The number of a span that is yet to come; inside that of whoever started this process, if they trace."""
    told = read_traceparent(os.environ.get(TRACEPARENT))
    return f"00-{told[0] if told else new_trace()}-{new_id():016x}-01"


def opened(tracing: Tracing, what: str, report: Callable[[str], None] | None = None) -> "Tracer":
    # Here, so that whoever has spans and no tracer, such as the sandboxes, needs the standard library alone.
    from hermes_rl.tracing.tracer import Exporting, Tracer

    resource = {
        "service.version": __version__,
        "service.instance.id": f"{platform.node()}-{os.getpid()}",
        "process.pid": os.getpid(),
        "hermes_rl.part": what,
    }
    return Tracer(
        Exporting(tracing.endpoint, tracing.service, resource),
        share=tracing.share,
        content=tracing.content,
        report=report,
    )


def _share(text: str) -> float:
    if not text.strip():
        return 1.0
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ConfigError(f"{SHARE}={text}: the share of groups to trace is a number from 0 to 1")
    return share
