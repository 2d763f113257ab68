"""JSON in and out, fast, and safe for what models write and authors keep.

Always true: `dumps` writes something for any value, and whole numbers of any length survive both ways. A model can emit
half a surrogate pair; orjson refuses it, here it becomes U+FFFD, so that one odd character never loses a rollout.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn

import orjson

OPTIONS = orjson.OPT_NON_STR_KEYS
TOO_DEEP = "(nested too deeply)"
# orjson writes 254 levels and reads more; the slow way cuts before either gives up.
DEEPEST = 200
# orjson reads an integer beyond 64 bits as a float. Shorter runs of digits always fit.
LONG_NUMBER = b"0" * 19
DIGITS_ALIKE = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else ord(" ") for byte in range(256))


def dumps(value: Any) -> bytes:
    try:
        # Keys are nearly always strings, and looking out for others slows every call.
        return orjson.dumps(value, default=_plain)
    except TypeError:
        pass
    try:
        return orjson.dumps(value, default=_plain, option=OPTIONS)
    except TypeError:
        return json.dumps(_clean(value), ensure_ascii=False, separators=(",", ":")).encode()


def loads(data: bytes | str) -> Any:
    """The value; ValueError when the text is not JSON."""
    raw = data if isinstance(data, bytes) else _whole(data).encode()
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
    """The value in the types that `json` writes as they are."""
    if isinstance(value, str):
        return _whole(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return _leaf(value) if (inner := _parts(value)) is None else _clean_parts(inner, depth + 1)


def _clean_parts(parts: dict[Any, Any] | list[Any], depth: int) -> Any:
    if depth > DEEPEST:
        return TOO_DEEP
    if isinstance(parts, dict):
        return {_key(key): _clean(value, depth) for key, value in parts.items()}
    return [_clean(value, depth) for value in parts]


def _parts(value: Any) -> dict[Any, Any] | list[Any] | None:
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
        return _whole(str(key))
    return str(text)


def _leaf(value: Any) -> Any:
    """What orjson makes of the value alone, so that both ways agree; its type when it cannot even be shown."""
    try:
        return orjson.loads(orjson.dumps(value, default=_plain, option=OPTIONS))
    except TypeError:
        pass
    try:
        return _whole(str(value))
    except Exception:  # noqa: BLE001 (an author's __str__ may do anything)
        return object.__repr__(value)


def _whole(text: str) -> str:
    """The text with halves of surrogate pairs joined where they meet, and U+FFFD for one that stands alone."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
