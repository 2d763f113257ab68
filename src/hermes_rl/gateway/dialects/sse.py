"""Server-sent events in the providers' format."""

from typing import Any

from hermes_rl.core import fast_json

DONE = b"data: [DONE]\n\n"
COMMENT = b": ping\n\n"
"""A comment that readers of events skip; it keeps the connection alive."""


def data(value: Any) -> bytes:
    return b"data: " + fast_json.dumps(value) + b"\n\n"


def event(name: str, value: Any) -> bytes:
    return b"event: " + name.encode() + b"\n" + data(value)
