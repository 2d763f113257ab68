"""Tells an author's code from ours and from libraries, and describes an error with the author's line that raised it."""

import os
import re
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_BUNDLED = f"{_PACKAGE / 'bundled'}{os.sep}"
_LIBRARY_PREFIXES = (
    "<",
    f"{_PACKAGE}{os.sep}",
    *sorted({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")}),
)


def is_author_code(file: str) -> bool:
    """Whether a file is author code: not the standard library, an installed package or ours, except bundled ones."""
    library = file.startswith(_LIBRARY_PREFIXES) or "site-packages" in file or "dist-packages" in file
    return file.startswith(_BUNDLED) or not library


def describe_error(error: BaseException) -> str:
    """`IndexError at my_env.py:9: list index out of range`, with the innermost line of the author's code."""
    text = str(error)
    return type(error).__name__ + author_line(error) + (f": {text}" if text else "")


def author_line(error: BaseException) -> str:
    """` at my_env.py:9`; empty when no code of the author was running."""
    return _line((frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__))


def printed_line(trace: str) -> str:
    """The same from the printed traceback of another process."""
    return _line(re.findall(r'^  File "(.+)", line (\d+)', trace, re.MULTILINE))


def _line(frames: Iterable[tuple[str, int | str]]) -> str:
    lines = [f" at {Path(file).name}:{line}" for file, line in frames if is_author_code(file)]
    return lines[-1] if lines else ""
