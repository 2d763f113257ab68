"""What is written: metrics by flat names, and a configuration without its secrets.

Names are the same in every sink: a value inside `{"a": {"b": …}}` is called `a/b` everywhere.
"""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

from pydantic import BaseModel

from hermes_rl.secrets import HIDDEN, is_literal

# A name with such a word in it holds a secret, unless its value refers to one: api_key, HF_TOKEN, Authorization.
SECRET = re.compile(
    r"(^|[^a-z])(keys?|apikey|tokens?|secrets?|passwords?|passwd|credentials?|auth|authorization)($|[^a-z])"
)

USER_IN_ADDRESS = re.compile(r"(://)[^/@\s]+@")


def flattened(metrics: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each value with its name, numbers of numpy and torch as Python's own."""
    for key, value in metrics.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flattened(value, f"{name}/")
        else:
            yield name, _plain(value)


def as_json(value: Any) -> Any:
    """A value as the metrics file keeps it: a table whole, any other object of a sink's own by its type."""
    if value is None or isinstance(value, bool | int | float | str | list | tuple):
        return value
    columns, rows = getattr(value, "columns", None), getattr(value, "data", None)
    if isinstance(columns, list) and isinstance(rows, list):
        return {"columns": columns, "data": rows}
    return f"({type(value).__module__.partition('.')[0]}.{type(value).__name__})"


def fits(value: Any, package: str) -> bool:
    """Whether a sink takes the value: numbers, text, lists of them, and what its own package makes."""
    if isinstance(value, bool | int | float | str | list | tuple):
        return True
    return value is not None and type(value).__module__.partition(".")[0] == package


def saved_config(config: BaseModel) -> dict[str, Any]:
    """The configuration as it may be shown to others; references to secrets stay, secrets do not."""
    shown: dict[str, Any] = _without_secrets(config.model_dump(mode="json"))
    return shown


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real | Decimal):
        return float(value)
    # An array or a tensor: one number when it holds one, else lists.
    convert = getattr(value, "tolist", None)
    return convert() if callable(convert) else value


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: HIDDEN if _is_secret(key, inner) else _without_secrets(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_secrets(inner) for inner in value]
    return USER_IN_ADDRESS.sub(rf"\g<1>{HIDDEN}@", value) if isinstance(value, str) else value


def _is_secret(key: str, value: Any) -> bool:
    named_so = SECRET.search(key.lower().replace("_", " ").replace("-", " "))
    return bool(named_so) and isinstance(value, str) and bool(value) and is_literal(value)
