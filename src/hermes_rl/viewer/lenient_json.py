"""Lenient JSON parsing: records of other writers are shown as they are, not rejected for one odd byte.

Always true: results can be written as JSON again; invalid UTF-8 and lone surrogates become U+FFFD, NaN and infinities
become None. Invalid JSON raises ValueError.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from hermes_rl.core import fast_json


def loads(raw: bytes) -> Any:
    try:
        return fast_json.loads(raw)
    except ValueError:
        pass
    try:
        value = json.loads(raw.decode("utf-8", "replace"), parse_constant=lambda _: None, strict=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return fast_json.loads(fast_json.dumps(value))


def as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else list(value) if isinstance(value, tuple) else []


def as_str(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def as_number(value: Any) -> float | None:
    """A finite number within 64 bits, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) and abs(value) < 2**63 else None
    except OverflowError:
        return None


def as_int(value: Any) -> int | None:
    found = as_number(value)
    return None if found is None else int(found)


def to_text(value: Any) -> str:
    """Any value as text."""
    return value if isinstance(value, str) else fast_json.dumps(value).decode("utf-8", "replace")
