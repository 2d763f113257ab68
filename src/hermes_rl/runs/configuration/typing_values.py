"""From what was typed to a value of the field's type: "8" is 8 where a number is asked for, and a word is none.

Always true: a refusal names the field, the value and what may be given; a secret is never repeated.
"""

import math
import re
from typing import Any

import yaml

from hermes_rl.errors import ConfigError
from hermes_rl.runs.configuration.described import DescribedField
from hermes_rl.runs.literal_secrets import holds_secret, looks_like_key

_LONGEST = 200
_WHOLE = re.compile(r"[+-]?\d+")
_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def typed(name: str, field: DescribedField, given: Any) -> Any:
    """The value that was meant; ConfigError when it can be none of the field."""
    if isinstance(given, str) and looks_like_key(given):
        raise _secret(name)
    for kind in field.kinds:
        value = _as_kind(kind, given)
        if value is not _NOTHING:
            if holds_secret(name.rpartition(".")[2], value):
                raise _secret(name)
            return value
    if field.nullable and (given is None or (isinstance(given, str) and given.strip().lower() in {"null", "none"})):
        return None
    raise refusal(name, given, field.allowed)


def refusal(name: str, given: Any, allowed: str, why: str = "") -> ConfigError:
    """The error that says what may be given instead."""
    shown = repr(given)
    shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"
    return ConfigError(f"{name} cannot be {shown}" + (f": {why}" if why else "") + f"; it takes {allowed}")


_NOTHING = object()


def _secret(name: str) -> ConfigError:
    return ConfigError(
        f"{name}: the value holds a secret, which would be saved with the run; give env:NAME or file:PATH instead, "
        "where `hermes-rl config set NAME` keeps the key"
    )


def _as_kind(kind: str, given: Any) -> Any:
    if kind == "any":
        return given
    if kind in {"text", "choice"}:
        return given if isinstance(given, str) and not (kind == "text" and _is_null(given)) else _NOTHING
    if kind == "boolean":
        return given if isinstance(given, bool) else _TRUTHS.get(str(given).strip().lower(), _NOTHING)
    if kind in {"integer", "number"}:
        return _number(kind, given)
    return _structure(list if kind == "list" else dict, given)


def _is_null(given: str) -> bool:
    return given.strip().lower() in {"null", "none"}


def _number(kind: str, given: Any) -> Any:
    value = given
    if isinstance(given, str):
        text = given.strip()
        try:
            value = int(text) if _WHOLE.fullmatch(text) else float(text)
        except ValueError:
            return _NOTHING
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return _NOTHING
    if kind == "number":
        return value
    return int(value) if value == int(value) else _NOTHING


def _structure(wanted: type, given: Any) -> Any:
    value = given
    if isinstance(given, str):
        if wanted is list and not given.lstrip().startswith("["):
            return [part.strip() for part in given.split(",") if part.strip()] if not _is_null(given) else _NOTHING
        try:
            value = yaml.safe_load(given)
        except yaml.YAMLError:
            return _NOTHING
    if wanted is list and isinstance(value, tuple):
        value = list(value)
    return value if isinstance(value, wanted) else _NOTHING
