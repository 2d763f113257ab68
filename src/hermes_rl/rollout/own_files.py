"""The files of an environment that its sandboxes must not show: its code and data, and paths in its settings and items.

Always true: a folder that programs in the sandbox need (`/usr/lib`, `site-packages`) is never among them.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from hermes_rl.sandbox.hidden_paths import with_links
from hermes_rl.sandbox.protocol import PATH

# Values of one item or configuration that are looked at.
MAX_VALUES = 10_000
# Entries of a folder that are looked at.
MAX_FILES = 5000
# Not an environment's own: version control, caches, installed packages, licences.
_OTHERS = re.compile(r"/(\.git|\.venv|__pycache__|node_modules|site-packages)/|/(LICEN[CS]E|COPYING|NOTICE)[^/]*$")
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_LIBRARIES = [
    f"{prefix}/{name}" for prefix in ("/usr", "/usr/local") for name in ("include", "lib", "libexec", "share")
]
_PROGRAMS = tuple(map(Path, PATH.split(":")))
_NEEDED = (*_PROGRAMS, *map(Path, _LIBRARIES))
# Settings that name what a sandbox is made of or runs.
_SHOWN_SETTINGS = ("agent_command", "agent_artifacts", "sandbox_image")


def environment_files(environment: type, config: BaseModel) -> list[Path]:
    """The folder or package of each of its classes, the working directory, and the paths in its configuration."""
    return _without_programs([*_named_files(environment, config), Path.cwd()])


def data_files(environment: type, config: BaseModel) -> list[Path]:
    """The files in them, without those of the working directory: data first, then code."""
    found: dict[Path, None] = {}
    for path in _without_programs(_named_files(environment, config)):
        below = islice(path.rglob("*"), MAX_FILES) if path.is_dir() else [path]
        own = (each for each in below if not _OTHERS.search(f"/{each.relative_to(path)}"))
        found |= dict.fromkeys(each for each in own if each.is_file())
    return sorted(found, key=lambda path: (path.suffix == ".py", path))


def item_files(item: Any) -> list[Path]:
    """The files and folders that an item has as `Path` values."""
    return _without_programs(value for value in _leaves(item) if isinstance(value, Path))


def _named_files(environment: type, config: BaseModel) -> Iterator[Path]:
    for file in _class_files(environment):
        yield from _code_and_data(file)
    for name, setting in config:
        if name not in _SHOWN_SETTINGS:
            yield from (Path(value).expanduser() for value in _leaves(setting) if _is_path(value))


def _class_files(environment: type) -> Iterator[Path]:
    for cls in environment.__mro__:
        package = cls.__module__.partition(".")[0]
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        if file is not None and package not in ("hermes_rl", *sys.stdlib_module_names):
            yield Path(file).resolve()


def _code_and_data(file: Path) -> Iterator[Path]:
    """The outermost package of a file, or its folder; the file alone if the folder is shared with others."""
    folder = file.parent
    while (folder / "__init__.py").is_file() and (folder.parent / "__init__.py").is_file():
        folder = folder.parent
    if not _is_shared(folder):
        yield from with_links(folder)
    else:
        yield file
        yield from folder.glob(f"__pycache__/{file.stem}.*.pyc")


def _without_programs(paths: Iterable[Path]) -> list[Path]:
    real = {Path(os.path.realpath(path)) for path in paths}
    return sorted(path for path in real if path.parent not in _PROGRAMS and not (path.is_dir() and _is_shared(path)))


def _is_shared(folder: Path) -> bool:
    holds_packages = any((folder / name).is_dir() for name in _PACKAGE_FOLDERS)
    return folder.name in _PACKAGE_FOLDERS or holds_packages or any(needed.is_relative_to(folder) for needed in _NEEDED)


def _is_path(value: object) -> bool:
    """Whether a setting is a Path, or the text of one that exists."""
    if isinstance(value, str) and "/" in value and "\n" not in value:
        # Unlike Path.exists, False for a text that is too long or cannot be a path.
        return os.path.exists(os.path.expanduser(value))  # noqa: PTH110, PTH111
    return isinstance(value, Path)


def _leaves(value: Any) -> Iterator[Any]:
    return islice(_walk(value), MAX_VALUES)


def _walk(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        parts: Iterable[Any] = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    elif isinstance(value, BaseModel):
        parts = (part for _, part in value)
    elif is_dataclass(value) and not isinstance(value, type):
        parts = (getattr(value, each.name) for each in fields(value))
    else:
        yield value
        return
    for part in parts:
        yield from _walk(part)
