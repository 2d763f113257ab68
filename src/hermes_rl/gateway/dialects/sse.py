"""Server-sent events, as the providers write them."""

from typing import Any

from hermes_rl import jsontext

DONE = b"data: [DONE]\n\n"
COMMENT = b": ping\n\n"
"""What every reader of events skips; it keeps a connection from looking dead."""


def data(value: Any) -> bytes:
    return b"data: " + jsontext.dumps(value) + b"\n\n"


def event(name: str, value: Any) -> bytes:
    return b"event: " + name.encode() + b"\n" + data(value)
