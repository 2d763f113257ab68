"""Serialization for sinks: metrics under flat names, configurations without secrets.

Always true: names are the same in every sink: the value in `{"a": {"b": …}}` is `a/b`.
"""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

from pydantic import BaseModel

from hermes_rl.core.redaction import HIDDEN, redact_urls
from hermes_rl.core.secrets import is_literal

# Field names that hold a secret, unless the value is a reference: api_key, HF_TOKEN, Authorization.
SECRET_NAME = re.compile(
    r"(^|[^a-z])(keys?|apikey|tokens?|secrets?|passwords?|passwd|credentials?|auth|authorization)($|[^a-z])"
)


def flatten(metrics: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each value with its flat name; numpy and torch numbers become Python numbers."""
    for key, value in metrics.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flatten(value, f"{name}/")
        else:
            yield name, _to_python(value)


def as_json(value: Any) -> Any:
    """A value for the metrics file: a table in full, any other sink object by its type name."""
    if value is None or isinstance(value, bool | int | float | str | list | tuple):
        return value
    columns, rows = getattr(value, "columns", None), getattr(value, "data", None)
    if isinstance(columns, list) and isinstance(rows, list):
        return {"columns": columns, "data": rows}
    return f"({type(value).__module__.partition('.')[0]}.{type(value).__name__})"


def is_loggable(value: Any, package: str) -> bool:
    """Whether a sink accepts the value: numbers, text, lists, and objects of its own package."""
    if isinstance(value, bool | int | float | str | list | tuple):
        return True
    return value is not None and type(value).__module__.partition(".")[0] == package


def public_config(config: BaseModel) -> dict[str, Any]:
    """The configuration without secrets; references to secrets stay."""
    public: dict[str, Any] = _without_secrets(config.model_dump(mode="json"))
    return public


def _to_python(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real | Decimal):
        return float(value)
    # An array or tensor: a number if it has one element, else nested lists.
    convert = getattr(value, "tolist", None)
    return convert() if callable(convert) else value


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: HIDDEN if _is_secret(key, inner) else _without_secrets(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_secrets(inner) for inner in value]
    return redact_urls(value) if isinstance(value, str) else value


def _is_secret(key: str, value: Any) -> bool:
    matches = SECRET_NAME.search(key.lower().replace("_", " ").replace("-", " "))
    return bool(matches) and isinstance(value, str) and bool(value) and is_literal(value)
