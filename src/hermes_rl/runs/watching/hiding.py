"""Keys kept out of what is told of a run, also where a part has written one into a message or a log.

Always true: the value of a key that this machine knows is never in an answer.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from hermes_rl.errors import ConfigError
from hermes_rl.runs.key_file import read_keys
from hermes_rl.runs.keys import key_file, key_names
from hermes_rl.secrets import without

# Shorter ones are no keys, and would take words out of every text.
SHORTEST = 8


def known_secrets(names: Iterable[str] = ()) -> list[str]:
    """The values of all keys that can be found here, and of those of these names."""
    found = {os.environ.get(name, "").strip() for name in {*key_names(), *names}}
    with suppress(ConfigError):
        found |= set(read_keys(key_file()).values())
    return [value for value in found if len(value) >= SHORTEST]


def hidden(value: Any, secrets: list[str]) -> Any:
    """The same value, with stars for each secret in its texts."""
    if isinstance(value, str):
        return without(value, secrets)
    if isinstance(value, dict):
        return {key: hidden(inner, secrets) for key, inner in value.items()}
    return [hidden(inner, secrets) for inner in value] if isinstance(value, list | tuple) else value
