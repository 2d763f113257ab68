"""Secrets by reference: a setting of `env:NAME` or `file:PATH` means the key of that name or the content of the file.

A reference may be saved and shown. The secret itself is never logged, stored or put into an error.
"""

from pathlib import Path
from typing import Any

from hermes_rl.core import redaction
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.keys import key_places, lookup_key

HIDDEN = redaction.HIDDEN
SECRET_FIELDS = ("api_key", "rollout_server_token", "inference_token", "teacher_token", "agent_token")
"""The settings that hold a secret."""
# Shorter values are not keys, and redacting them would garble ordinary words.
MIN_SECRET_LENGTH = 8


def is_literal(value: str) -> bool:
    """Whether the value is the secret itself, not a reference."""
    return not value.startswith(("env:", "file:"))


def resolve_secret(value: str, setting: str) -> str:
    """The referenced secret, or the literal value unchanged. ConfigError names the setting."""
    return value if is_literal(value) else _read(value, setting)[0]


def resolve_key(value: str, setting: str) -> str:
    """The key given literally or by reference: one word, fit for a header. ConfigError names the setting."""
    text, where = _read(value, setting)
    if not text or not text.isprintable() or " " in text:
        raise ConfigError(f"{setting}: {where} does not hold a key on one line without spaces")
    return text


def redact(text: str, secrets: list[str]) -> str:
    """Hide secrets in a text. A server may repeat a secret that it was sent."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def redact_value(value: Any, secrets: list[str]) -> Any:
    """The value with the secrets in its strings redacted."""
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, dict):
        return {key: redact_value(inner, secrets) for key, inner in value.items()}
    return [redact_value(inner, secrets) for inner in value] if isinstance(value, list | tuple) else value


def _read(value: str, setting: str) -> tuple[str, str]:
    """The stripped text, and a description of its source."""
    kind, _, name = value.partition(":")
    if kind == "env":
        found = lookup_key(name)
        if found is None:
            *files, last = map(str, key_places())
            raise ConfigError(
                f"{setting} names the variable {name}, which is not set, nor in {', '.join(files)} or {last}; "
                f"export it, or run: hermes-rl config set {name}"
            )
        return found.value, f"the variable {name}"
    if kind == "file":
        try:
            return Path(name).expanduser().read_text().strip(), f"the file {name}"
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"{setting} names the file {name}, which cannot be read: {error}") from None
    return value.strip(), "the value"
