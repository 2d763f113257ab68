"""Traces: what happened when, inside what, in every process of a run; off unless somebody opened a Tracer.

Always true: tracing changes nothing that a rollout does. It is no global: it is on where a span is current, which tasks
inherit, and elsewhere each call here is one look at a context variable. No words of a message leave unless asked for.
"""

from hermes_rl.tracing.opening import Tracing, traced
from hermes_rl.tracing.span import (
    NOTHING,
    Scope,
    Span,
    TracedSpan,
    current_scope,
    current_span,
    group_span,
    headers,
    remote_span,
    span,
    within,
)

__all__ = [
    "NOTHING",
    "Scope",
    "Span",
    "TracedSpan",
    "Tracing",
    "current_scope",
    "current_span",
    "group_span",
    "headers",
    "remote_span",
    "span",
    "traced",
    "within",
]
