"""Read and parse a source file, or report why it cannot be parsed.

Always true: the file is read every time, so changes are seen immediately. Only parse results of equal bytes are cached.
"""

import ast
import hashlib
import os
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path

from hermes_rl.orchestration.discovery.module import Module, read_module

MAX_FILE_BYTES = 2 * 1024 * 1024
_MAX_CACHED = 4096


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """Why a file cannot be read as Python."""

    why: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class SourceFile:
    version: str
    module: Module


_cache: dict[bytes, Module | SourceProblem] = {}


def read_source(file: Path) -> SourceFile | SourceProblem:
    try:
        data = _content(file)
    except OSError as error:
        return SourceProblem(f"cannot be read: {error.strerror or error}")
    if data is None:
        return SourceProblem("not a regular file")
    if len(data) > MAX_FILE_BYTES:
        return SourceProblem(f"larger than {MAX_FILE_BYTES // 1024 // 1024} MB; move its data to another file")
    digest = hashlib.sha256(data)
    key = digest.digest()
    if key not in _cache:
        if len(_cache) >= _MAX_CACHED:
            _cache.clear()
        _cache[key] = _parse(data)
    parsed = _cache[key]
    return parsed if isinstance(parsed, SourceProblem) else SourceFile(digest.hexdigest()[:8], parsed)


def resolve_path(file: Path) -> Path:
    """Resolve links, so that a file has one path."""
    try:
        return file.resolve()
    except (OSError, RuntimeError):
        # A link to itself: reading it will report the error.
        return file.absolute()


def _content(file: Path) -> bytes | None:
    # Without O_NONBLOCK, opening a named pipe called *.py would block forever.
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            return None
        return opened.read(MAX_FILE_BYTES + 1)


def _parse(data: bytes) -> Module | SourceProblem:
    if (nul := data.find(b"\0")) >= 0:
        return SourceProblem("contains null bytes", _line(data, nul))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read_module(ast.parse(data))
    except SyntaxError as error:
        return _syntax_problem(error, data)
    except (RecursionError, MemoryError):
        return SourceProblem("its expressions are nested too deeply to parse")
    except ValueError as error:
        return SourceProblem(f"not valid Python: {error}")


def _syntax_problem(error: SyntaxError, data: bytes) -> SourceProblem:
    try:
        data.decode()
    except UnicodeDecodeError as unreadable:
        if "utf-8" in str(error):
            return SourceProblem("not UTF-8, and no other encoding is declared", _line(data, unreadable.start))
    kind = "" if type(error) is SyntaxError else f" ({type(error).__name__})"
    return SourceProblem(f"syntax error{kind}: {error.msg}", error.lineno or None)


def _line(data: bytes, offset: int) -> int:
    return data.count(b"\n", 0, offset) + 1
