"""Secrets by reference: `env:NAME` or `file:PATH` in a setting stands for what the variable or the file holds.

A reference may be saved and shown; what it stands for goes where it is needed and nowhere else, also not into an error.
"""

import os
from pathlib import Path

from hermes_rl.errors import ConfigError

HIDDEN = "**********"


def is_literal(value: str) -> bool:
    """Whether the value is the secret itself and no reference to one."""
    return not value.startswith(("env:", "file:"))


def resolved(value: str, setting: str) -> str:
    """What the value stands for, a literal as it is. ConfigError names the setting."""
    if is_literal(value):
        return value
    return _read(value, setting)[0]


def resolved_key(value: str, setting: str) -> str:
    """The key that the value is or stands for: one word, as a header carries it. ConfigError names the setting."""
    text, where = _read(value, setting)
    if not text or not text.isprintable() or " " in text:
        raise ConfigError(f"{setting}: {where} does not hold a key on one line without spaces")
    return text


def without(text: str, secrets: list[str]) -> str:
    """The text as it may be kept: whoever was sent a secret may repeat it."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _read(value: str, setting: str) -> tuple[str, str]:
    """The text without the space around it, and where it stood."""
    kind, _, name = value.partition(":")
    if kind == "env":
        if name not in os.environ:
            raise ConfigError(f"{setting} names the variable {name}, which is not set; export it first")
        return os.environ[name].strip(), f"the variable {name}"
    if kind == "file":
        try:
            return Path(name).expanduser().read_text().strip(), f"the file {name}"
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"{setting} names the file {name}, which cannot be read: {error}") from None
    return value.strip(), "the value"
