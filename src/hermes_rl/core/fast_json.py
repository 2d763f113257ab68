"""Fast JSON that tolerates model output and arbitrary metadata.

Always true: `dumps` never fails, and integers of any length round-trip. orjson rejects a lone surrogate, which a model
can emit; here it becomes U+FFFD, so that one odd character never loses a rollout.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn

import orjson

OPTIONS = orjson.OPT_NON_STR_KEYS
TOO_DEEP = "(nested too deeply)"
# orjson writes 254 levels and reads more; the slow path truncates before that.
MAX_DEPTH = 200
# orjson reads an integer beyond 64 bits as a float. Shorter runs of digits always fit.
LONG_NUMBER = b"0" * 19
DIGITS_ALIKE = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else ord(" ") for byte in range(256))


def dumps(value: Any) -> bytes:
    try:
        # Keys are nearly always strings, and OPT_NON_STR_KEYS slows every call.
        return orjson.dumps(value, default=_plain)
    except TypeError:
        pass
    try:
        return orjson.dumps(value, default=_plain, option=OPTIONS)
    except TypeError:
        return json.dumps(_clean(value), ensure_ascii=False, separators=(",", ":")).encode()


def dumps_plain(value: Any) -> bytes:
    """JSON of a value that has a JSON form, dataclasses, pydantic models and sets among them; TypeError for others."""
    try:
        return orjson.dumps(value, default=_plain_form, option=OPTIONS | orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        if "surrogates" in str(error):
            return dumps(value)
        raise TypeError(str(error.__cause__ or error)) from None


def _plain_form(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    if isinstance(value, Mapping):
        return dict(value)
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__name__} has no JSON form: make it a dataclass or a pydantic model")
    return dump(mode="json")


def loads(data: bytes | str) -> Any:
    """Parse JSON; ValueError when it is invalid."""
    raw = data if isinstance(data, bytes) else _fix_surrogates(data).encode()
    if LONG_NUMBER in raw.translate(DIGITS_ALIKE):
        return _loads_slowly(raw)
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if b"\\u" in raw:
            return _loads_slowly(raw)
        raise ValueError(str(error)) from None


def _loads_slowly(raw: bytes) -> Any:
    try:
        return _clean(json.loads(raw.decode(), parse_constant=_refuse))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return dict(value) if isinstance(value, Mapping) else str(value)


def _clean(value: Any, depth: int = 0) -> Any:
    """Convert a value to types that `json` writes directly."""
    if isinstance(value, str):
        return _fix_surrogates(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return _leaf(value) if (inner := _children(value)) is None else _clean_children(inner, depth + 1)


def _clean_children(parts: dict[Any, Any] | list[Any], depth: int) -> Any:
    if depth > MAX_DEPTH:
        return TOO_DEEP
    if isinstance(parts, dict):
        return {_key(key): _clean(value, depth) for key, value in parts.items()}
    return [_clean(value, depth) for value in parts]


def _children(value: Any) -> dict[Any, Any] | list[Any] | None:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return list(value) if isinstance(value, list | tuple) else None


def _key(key: Any) -> str:
    try:
        [text] = orjson.loads(orjson.dumps({key: None}, option=OPTIONS))
    except TypeError:
        return _fix_surrogates(str(key))
    return str(text)


def _leaf(value: Any) -> Any:
    """What orjson writes for the value, so that both paths agree; a plain repr when its `__str__` raises."""
    try:
        return orjson.loads(orjson.dumps(value, default=_plain, option=OPTIONS))
    except TypeError:
        pass
    try:
        return _fix_surrogates(str(value))
    except Exception:  # noqa: BLE001 (user code's __str__ may raise anything)
        return object.__repr__(value)


def _fix_surrogates(text: str) -> str:
    """Join adjacent surrogate halves, and replace lone ones with U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
