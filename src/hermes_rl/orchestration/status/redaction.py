"""Redacts keys from status answers, including keys that a component wrote into a message or a log.

Always true: an answer never contains the value of a key known to this machine.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.secrets import redact
from hermes_rl.orchestration.key_file import read_keys
from hermes_rl.orchestration.keys import key_file, key_names

# Shorter values are not keys, and redacting them would garble ordinary words.
MIN_SECRET_LENGTH = 8


def known_secrets(names: Iterable[str] = ()) -> list[str]:
    """The values of all keys known here, and of the named environment variables."""
    values = {os.environ.get(name, "").strip() for name in {*key_names(), *names}}
    with suppress(ConfigError):
        values |= set(read_keys(key_file()).values())
    return [value for value in values if len(value) >= MIN_SECRET_LENGTH]


def redact_value(value: Any, secrets: list[str]) -> Any:
    """The value with the secrets in its strings redacted."""
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, dict):
        return {key: redact_value(inner, secrets) for key, inner in value.items()}
    return [redact_value(inner, secrets) for inner in value] if isinstance(value, list | tuple) else value
