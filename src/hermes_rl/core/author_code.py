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
    frames = ((frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__))
    return _describe(type(error).__name__, str(error), frames)


def describe_traceback(kind: str, text: str, printed: str) -> str:
    """The same for an error of another process, from its printed traceback."""
    return _describe(kind, text, re.findall(r'^  File "(.+)", line (\d+)', printed, re.MULTILINE))


def _describe(kind: str, text: str, frames: Iterable[tuple[str, int | str]]) -> str:
    lines = [f" at {Path(file).name}:{line}" for file, line in frames if is_author_code(file)]
    return kind + (lines[-1] if lines else "") + (f": {text}" if text else "")
