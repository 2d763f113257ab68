"""Tracing across the processes of a run; off unless a Tracer is open.

Always true: tracing never changes what a rollout does. It has no global switch: it is on where a span is current, which
tasks inherit, and elsewhere each call costs one context variable lookup. Message content is exported only on request.
"""

from hermes_rl.tracing.setup import Tracing, traced
from hermes_rl.tracing.span import (
    NO_SPAN,
    Span,
    Trace,
    TracedSpan,
    current_span,
    current_trace,
    group_span,
    headers,
    remote_span,
    span,
    use_span,
)

__all__ = [
    "NO_SPAN",
    "Span",
    "Trace",
    "TracedSpan",
    "Tracing",
    "current_span",
    "current_trace",
    "group_span",
    "headers",
    "remote_span",
    "span",
    "traced",
    "use_span",
]
