"""Look up keys by name: a variable of this process, else .env here, the user's key file, .env in hermes-agent's home.

Always true: a value is never logged, and displayed only masked. A command loads what it finds into its own environment,
where an author's code and libraries look; sandboxes get none of it.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.key_file import read_keys
from hermes_rl.core.paths import hermes_home, rl_home

VARIABLE, KEY_FILE = "variable", "file"
DOTENV, HERE = ".env", Path()
# The names in a .env file whose values are secrets; the key file holds nothing else.
SECRET_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FoundKey:
    """`source` is `variable`, `file` for the key file, or the path of a .env file."""

    name: str
    value: str = field(repr=False)
    source: str


def key_file() -> Path:
    return rl_home() / "keys.env"


def find_key(name: str) -> str | None:
    """The value of a key; an empty one counts as unset."""
    found = lookup_key(name)
    return None if found is None else found.value


def lookup_key(name: str) -> FoundKey | None:
    """A key and its source. ConfigError when the key file is needed and other users can read it."""
    if value := os.environ.get(name, "").strip():
        return FoundKey(name, value, VARIABLE)
    for file in key_places():
        if value := _read(file).get(name, ""):
            return FoundKey(name, value, KEY_FILE if file == key_file() else str(file))
    return None


def key_places(folder: Path = HERE) -> Iterator[Path]:
    """The files that may hold keys, by precedence. A .env here may set HERMES_HOME, so the home is read after it."""
    yield folder / DOTENV
    yield key_file()
    yield hermes_home() / DOTENV


def load_keys(report: Callable[[str], object]) -> None:
    """Set an environment variable for each stored key that has none, and report files that cannot be read."""
    for file in key_places():
        try:
            values = _read(file)
        except ConfigError as error:
            report(str(error))
            continue
        for name, value in values.items():
            if value and not os.environ.get(name, "").strip():
                os.environ[name] = value


def stored_secrets(folder: Path = HERE) -> set[str]:
    """The values that must not appear in a log of a command that was started in this folder."""
    values = set()
    for file in key_places(folder):
        with suppress(ConfigError):
            values |= {value for name, value in _read(file).items() if file == key_file() or SECRET_NAMES.search(name)}
    return values


def _read(file: Path) -> Mapping[str, str]:
    if file.name != DOTENV:
        return read_keys(file)
    # Python's virtual environments are sometimes named .env.
    if not file.is_file():
        return {}
    from dotenv import dotenv_values

    try:
        return {name: value.strip() for name, value in dotenv_values(file).items() if value}
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
