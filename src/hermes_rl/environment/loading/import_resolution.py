"""Resolves the local imports of an environment's file, without importing anything.

A relative import follows folders; an absolute one resolves to the file's own package or to a sibling module. A sibling
never shadows the standard library or hermes_rl. A folder without `__init__.py`, or a module inside a package, shadows
nothing that is installed.
"""

import importlib.util
import sys
from contextlib import suppress
from pathlib import Path

from _hermes_rl_imports import is_alias

NEVER_LOCAL = sys.stdlib_module_names | {"hermes_rl"}
INSTALLED = ("site-packages", "dist-packages")


def resolve_local_import(importer: Path, name: str, level: int = 0) -> Path | None:
    """The file, or the folder without `__init__.py`, of a local import; None when the import is not local.

    `name` and `level` come from the import statement: `from ..a.b import c` has `a.b` and 2.
    """
    folder = importer.parent
    parts = name.split(".") if name else []
    if level:
        ancestors = [folder, *folder.parents]
        return module_at(ancestors[level - 1], parts) if level <= len(ancestors) else None
    top = parts[0]
    if top in NEVER_LOCAL:
        return None
    package = outermost_package(importer)
    if package is not None and package.name == top:
        return module_at(package.parent, parts)
    sibling = None if folder.name in INSTALLED else module_at(folder, parts[:1])
    if sibling is None or ((package is not None or sibling.suffix != ".py") and find_installed(top) is not None):
        return None
    return module_at(folder, parts)


def module_at(folder: Path, parts: list[str]) -> Path | None:
    """The file or folder that Python would import for `parts` from `folder`."""
    path = folder.joinpath(*parts)
    with suppress(OSError):
        if (package := path / "__init__.py").is_file():
            return package
        if parts and (module := path.with_name(f"{path.name}.py")).is_file():
            return module
        if path.is_dir():
            return path
    return None


def outermost_package(file: Path) -> Path | None:
    """The folder of the outermost package that contains a file; None outside packages."""
    outermost = None
    for folder in file.parents:
        with suppress(OSError):
            if (folder / "__init__.py").is_file():
                outermost = folder
                continue
        break
    return outermost


def package_name(file: Path) -> str:
    """The dotted package of a file, such as `pkg.sub`; empty outside packages."""
    package = outermost_package(file)
    return "" if package is None else ".".join(file.parent.relative_to(package.parent).parts)


def find_installed(name: str) -> list[Path] | None:
    """Paths of an installed top-level module: its file, or its package folders; None when not installed."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or is_alias(spec):
        return None
    if spec.submodule_search_locations is not None:
        return [Path(path) for path in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.origin else []


def installed_module(name: str) -> Path | None:
    """The file of an installed module or package, found without importing it; None when it has none."""
    top, *parts = name.split(".")
    for path in find_installed(top) or ():
        if path.suffix == ".py" and not parts:
            return path
        found = module_at(path, parts) if path.suffix != ".py" else None
        if found is not None:
            return found
    return None


def file_reference(reference: str) -> str:
    """`package.module:Class` as `FILE.py:Class`, found without importing it; any other reference unchanged.

    Installed modules come first, then modules below the working directory.
    """
    module, colon, class_name = reference.partition(":")
    parts = module.split(".")
    if not colon or module.endswith(".py") or not all(part.isidentifier() for part in parts):
        return reference
    file = installed_module(module) or module_at(Path.cwd(), parts)
    return f"{file}:{class_name}" if file is not None and file.suffix == ".py" else reference
