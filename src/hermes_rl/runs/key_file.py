"""The file with the user's keys: a line NAME=value each, which a shell can read too.

Always true: from its first byte on it is readable by its owner alone; a reader sees the old file or the new one; of
several writers none loses another's key; no message holds a value.
"""

import os
import re
import shlex
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hermes_rl.errors import ConfigError
from hermes_rl.store.holding import in_turn

LOCK_DEADLINE_S = 20.0
_HEAD = "# Keys of hermes-rl, for nobody else to read. Change them with: hermes-rl config set NAME\n"
_NAME = re.compile(r"[A-Z][A-Z0-9_]*")


def read_keys(file: Path) -> dict[str, str]:
    """All keys of the file; none when there is no file. ConfigError when others could have read or written it."""
    try:
        with file.open(encoding="utf-8") as opened:
            _check_owner(file, os.fstat(opened.fileno()))
            return dict(_read_line(file, number, line) for number, line in _lines(opened.read()))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"the key file {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the key file {file} is not text in UTF-8; move it away and set the keys again") from None


def change_keys(file: Path, name: str, value: str | None) -> bool:
    """Set one key, or remove it with None; whether anything changed."""
    try:
        # Others may pass through: with HERMES_HOME set, root's sandboxes run as other users and have their images here.
        file.parent.mkdir(parents=True, exist_ok=True)
        with in_turn(lock_of(file), LOCK_DEADLINE_S, f"the key file {file}"):
            keys = read_keys(file)
            if keys.get(name) == value:
                return False
            changed = {key: text for key, text in keys.items() if key != name}
            _replace(file, changed if value is None else {**changed, name: value})
    except OSError as error:
        raise ConfigError(f"the key file {file} cannot be written: {error.strerror}") from None
    return True


def check_name(name: str) -> str:
    """The name. ConfigError does not repeat what is none: it may be the value, in the wrong place."""
    if not _NAME.fullmatch(name):
        raise ConfigError("a key is named by capitals, digits and _, as TINKER_API_KEY, and this name is not")
    return name


def check_value(name: str, value: str) -> str:
    """The value without the space around it; ConfigError, that does not repeat it, for what is no key."""
    value = value.strip()
    if not value:
        raise ConfigError(f"the value of {name} is empty; to remove the key: hermes-rl config unset {name}")
    if not value.isprintable():
        raise ConfigError(f"the value of {name} must be one line of printable characters; copy the key once more")
    return value


def mode_fault(file: Path, found: os.stat_result) -> tuple[str, str] | None:
    """Why the file cannot be trusted with keys, and the line that mends it."""
    quoted = shlex.quote(str(file))
    if not stat.S_ISREG(found.st_mode):
        return f"the key file {file} is no plain file", f"mv {quoted} {quoted}.old"
    if found.st_uid != os.geteuid():
        return f"the key file {file} belongs to another user", f"sudo chown {os.geteuid()} {quoted}"
    if found.st_mode & 0o077:
        return f"others can read the key file {file} (mode {stat.S_IMODE(found.st_mode):o})", f"chmod 600 {quoted}"
    return None


def _check_owner(file: Path, found: os.stat_result) -> None:
    if fault := mode_fault(file, found):
        raise ConfigError(f"{fault[0]}; mend it with: {fault[1]}")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if (bare := line.strip()) and not bare.startswith("#"):
            yield number, bare.removeprefix("export ").lstrip()


def _read_line(file: Path, number: int, line: str) -> tuple[str, str]:
    name, _, quoted = line.partition("=")
    with suppress(ValueError):
        words = shlex.split(quoted)
        if _NAME.fullmatch(name) and len(words) == 1:
            return name, words[0]
    raise ConfigError(f"the key file {file}, line {number} is not NAME=value; mend or remove that line")


def lock_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.lock")


def _replace(file: Path, keys: dict[str, str]) -> None:
    text = _HEAD + "".join(f"{name}={shlex.quote(value)}\n" for name, value in sorted(keys.items()))
    aside = file.with_name(f"{file.name}.part")
    # What a killed writer left. Nobody else is writing: the lock is ours.
    aside.unlink(missing_ok=True)
    try:
        opened = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(opened, "w", encoding="utf-8") as part:
            part.write(text)
            part.flush()
            os.fsync(part.fileno())
        aside.replace(file)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
