"""The user's key file: one NAME=value per line, which a shell can source too.

Always true: only its owner can ever read it; a reader sees the old file or the new one; concurrent writers do not lose
each other's keys; no message contains a value.
"""

import os
import re
import shlex
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.file_lock import wait_for_lock
from hermes_rl.core.private_files import private_folder

LOCK_DEADLINE_S = 20.0
_HEADER = "# Private keys of hermes-rl. Change them with: hermes-rl config set NAME\n"
_NAME = re.compile(r"[A-Z][A-Z0-9_]*")


def read_keys(file: Path) -> dict[str, str]:
    """All keys in the file; empty when there is no file. ConfigError when other users can read or write it."""
    try:
        with file.open(encoding="utf-8") as opened:
            _check_permissions(file, os.fstat(opened.fileno()))
            return dict(_parse_line(file, number, line) for number, line in _lines(opened.read()))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"the key file {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the key file {file} is not UTF-8 text; move it away and set the keys again") from None


def change_keys(file: Path, name: str, value: str | None) -> bool:
    """Set one key, or remove it with None. Returns whether anything changed."""
    try:
        private_folder(file.parent)
        with wait_for_lock(lock_path(file), LOCK_DEADLINE_S, f"the key file {file}"):
            keys = read_keys(file)
            if keys.get(name) == value:
                return False
            others = {key: text for key, text in keys.items() if key != name}
            _replace(file, others if value is None else {**others, name: value})
    except OSError as error:
        raise ConfigError(f"the key file {file} cannot be written: {error.strerror}") from None
    return True


def check_name(name: str) -> str:
    """Return the name. The error does not repeat an invalid one, which may be the value in the wrong position."""
    if not _NAME.fullmatch(name):
        raise ConfigError("invalid key name; use capitals, digits and _, for example TINKER_API_KEY")
    return name


def check_value(name: str, value: str) -> str:
    """Return the value without surrounding whitespace. The error does not repeat an invalid one."""
    value = value.strip()
    if not value:
        raise ConfigError(f"the value of {name} is empty; to remove the key: hermes-rl config unset {name}")
    if not value.isprintable():
        raise ConfigError(f"the value of {name} must be one line of printable characters; copy the key again")
    return value


def permission_problem(file: Path, status: os.stat_result) -> tuple[str, str] | None:
    """Why the file cannot be trusted with keys, and the command that fixes it."""
    quoted = shlex.quote(str(file))
    if not stat.S_ISREG(status.st_mode):
        return f"the key file {file} is not a regular file", f"mv {quoted} {quoted}.old"
    if status.st_uid != os.geteuid():
        return f"the key file {file} belongs to another user", f"sudo chown {os.geteuid()} {quoted}"
    if status.st_mode & 0o077:
        return f"others can read the key file {file} (mode {stat.S_IMODE(status.st_mode):o})", f"chmod 600 {quoted}"
    return None


def _check_permissions(file: Path, status: os.stat_result) -> None:
    if problem := permission_problem(file, status):
        raise ConfigError(f"{problem[0]}; fix it with: {problem[1]}")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if (stripped := line.strip()) and not stripped.startswith("#"):
            yield number, stripped.removeprefix("export ").lstrip()


def _parse_line(file: Path, number: int, line: str) -> tuple[str, str]:
    name, _, quoted = line.partition("=")
    with suppress(ValueError):
        words = shlex.split(quoted)
        if _NAME.fullmatch(name) and len(words) == 1:
            return name, words[0]
    raise ConfigError(f"the key file {file}, line {number} is not NAME=value; fix or remove that line")


def lock_path(file: Path) -> Path:
    return file.with_name(f"{file.name}.lock")


def _replace(file: Path, keys: dict[str, str]) -> None:
    text = _HEADER + "".join(f"{name}={shlex.quote(value)}\n" for name, value in sorted(keys.items()))
    temporary = file.with_name(f"{file.name}.part")
    # Left by a killed writer: we hold the lock, so nobody else is writing.
    temporary.unlink(missing_ok=True)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
