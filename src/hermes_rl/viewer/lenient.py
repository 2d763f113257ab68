"""JSON of any writer, read as far as it can be: records are shown for what they are, not refused for one odd byte.

Always true: what comes back can be written as JSON again; bytes that are no UTF-8 and halves of surrogate pairs are
U+FFFD, and NaN and infinities are None. Text that is no JSON raises ValueError.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from hermes_rl import jsontext


def loads(raw: bytes) -> Any:
    try:
        return jsontext.loads(raw)
    except ValueError:
        pass
    try:
        read = json.loads(raw.decode("utf-8", "replace"), parse_constant=lambda _: None, strict=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return jsontext.loads(jsontext.dumps(read))


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def sequence(value: Any) -> list[Any]:
    return value if isinstance(value, list) else list(value) if isinstance(value, tuple) else []


def text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def number(value: Any) -> float | None:
    """A finite number, else None; whole ones beyond 64 bits as floats."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) and abs(value) < 2**63 else None
    except OverflowError:
        return None


def whole(value: Any) -> int | None:
    found = number(value)
    return None if found is None else int(found)


def shown(value: Any) -> str:
    """Any value as text."""
    return value if isinstance(value, str) else jsontext.dumps(value).decode("utf-8", "replace")
