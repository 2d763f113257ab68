"""From a file to its syntax tree, or to the reason why it has none.

Always true: the file is read anew each time, so a change is seen at once; only the reading of equal bytes is kept.
"""

import ast
import hashlib
import os
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path

from hermes_rl.runs.discovery.module import Module, module_of

LARGEST = 2 * 1024 * 1024
_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Flaw:
    """Why a file cannot be read as Python."""

    why: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Source:
    version: str
    module: Module


_read: dict[bytes, Module | Flaw] = {}


def read_source(file: Path) -> Source | Flaw:
    try:
        data = _content(file)
    except OSError as error:
        return Flaw(f"it cannot be read: {error.strerror or error}")
    if data is None:
        return Flaw("it is no ordinary file")
    if len(data) > LARGEST:
        return Flaw(
            f"it is larger than {LARGEST // 1024 // 1024} MB, which no environment should be; move its data out"
        )
    digest = hashlib.sha256(data)
    key = digest.digest()
    if key not in _read:
        if len(_read) >= _KEPT:
            _read.clear()
        _read[key] = _parsed(data)
    read = _read[key]
    return read if isinstance(read, Flaw) else Source(digest.hexdigest()[:8], read)


def resolved(file: Path) -> Path:
    """Without links, so that a file has one path."""
    try:
        return file.resolve()
    except (OSError, RuntimeError):
        # A link to itself, which reading it will tell.
        return file.absolute()


def _content(file: Path) -> bytes | None:
    # Without O_NONBLOCK a pipe that has the name of a Python file would hold us for ever.
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            return None
        return opened.read(LARGEST + 1)


def _parsed(data: bytes) -> Module | Flaw:
    if (nul := data.find(b"\0")) >= 0:
        return Flaw("it has null bytes in it, which Python refuses", _line(data, nul))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return module_of(ast.parse(data))
    except SyntaxError as error:
        return _flaw_of(error, data)
    except (RecursionError, MemoryError):
        return Flaw("its expressions are nested too deep to be read")
    except ValueError as error:
        return Flaw(f"it is no Python: {error}")


def _flaw_of(error: SyntaxError, data: bytes) -> Flaw:
    try:
        data.decode()
    except UnicodeDecodeError as unreadable:
        if "utf-8" in str(error):
            return Flaw("it is not UTF-8, and says no other encoding in its first line", _line(data, unreadable.start))
    kind = "" if type(error) is SyntaxError else f" ({type(error).__name__})"
    return Flaw(f"syntax error{kind}: {error.msg}", error.lineno or None)


def _line(data: bytes, place: int) -> int:
    return data.count(b"\n", 0, place) + 1
