"""Modules near an environment's file: what its imports mean by the place it stands in, for a reader and for a loader.

Always true: nothing is imported to find out. An import means the same whether the file is read or run: a relative one
goes by folders, an absolute one to the file's own package or to a module beside the file. A module beside it never
hides one of Python's or hermes_rl; a folder without `__init__.py`, or a module inside a package, hides nothing that is
installed.
"""

import importlib.util
import sys
from contextlib import suppress
from pathlib import Path

NEVER_NEAR = sys.stdlib_module_names | {"hermes_rl"}
INSTALLED = ("site-packages", "dist-packages")


def near_module(importer: Path, name: str, level: int = 0) -> Path | None:
    """The file, or the folder without `__init__.py`, of a module near another's file; None when it is not near.

    `name` and `level` are those of the import statement: `from ..a.b import c` has `a.b` and 2.
    """
    folder = importer.parent
    parts = name.split(".") if name else []
    if level:
        above = [folder, *folder.parents]
        return module_at(above[level - 1], parts) if level <= len(above) else None
    top = parts[0]
    if top in NEVER_NEAR:
        return None
    package = own_package(importer)
    if package is not None and package.name == top:
        return module_at(package.parent, parts)
    beside = None if folder.name in INSTALLED else module_at(folder, parts[:1])
    if beside is None or ((package is not None or beside.suffix != ".py") and top_of(top) is not None):
        return None
    return module_at(folder, parts)


def module_at(folder: Path, parts: list[str]) -> Path | None:
    """What Python would take for the module `parts` if it looked in `folder`."""
    place = folder.joinpath(*parts)
    with suppress(OSError):
        if (package := place / "__init__.py").is_file():
            return package
        if parts and (module := place.with_name(f"{place.name}.py")).is_file():
            return module
        if place.is_dir():
            return place
    return None


def own_package(file: Path) -> Path | None:
    """The folder of the outermost package that a file is in; None when it is in none."""
    outermost = None
    for folder in file.parents:
        with suppress(OSError):
            if (folder / "__init__.py").is_file():
                outermost = folder
                continue
        break
    return outermost


def dotted_name(file: Path) -> str:
    """The package of a file by its folders, as `pkg.sub`; empty when it is in none."""
    package = own_package(file)
    return "" if package is None else ".".join(file.parent.relative_to(package.parent).parts)


def top_of(name: str) -> list[Path] | None:
    """Where an installed top-level module is: its file, or the folders of its package; None when there is none."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations is not None:
        return [Path(place) for place in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.origin else []


def installed_module(name: str) -> Path | None:
    """The file of an installed module or package, found by its folders; None when it has none."""
    top, *parts = name.split(".")
    for place in top_of(top) or ():
        if place.suffix == ".py" and not parts:
            return place
        there = module_at(place, parts) if place.suffix != ".py" else None
        if there is not None:
            return there
    return None
