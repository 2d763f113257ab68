"""An environment's file and the modules near it, loaded as modules of their own.

Always true: sys.path is never edited, no module is put under a name that others import by, and each loading runs each
file once. `near_module` says what is near; everything else is imported as usual, the seeds' names besides.
"""

import builtins
import hashlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from hermes_rl.environment.seed_names import aliasing_import, is_served
from hermes_rl.neighbours import dotted_name, module_at, near_module


class PrivateModules:
    """The modules of one loading, by their files. `marks` are set in each before it runs."""

    def __init__(self, marks: Mapping[str, object]) -> None:
        self._marks = marks
        self._loaded: dict[Path, ModuleType] = {}
        self._usual = aliasing_import()

    def load(self, file: Path) -> ModuleType:
        """Run a file, or give what it was run to before; whatever it raises is raised."""
        file = file.resolve()
        if file in self._loaded:
            return self._loaded[file]
        # Two files of the same name in different folders are two modules.
        name = f"hermes_rl_environment_{file.stem}_{hashlib.sha256(bytes(file)).hexdigest()[:8]}"
        inner = [str(file.parent)] if file.name == "__init__.py" else None
        spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=inner)
        if spec is None or spec.loader is None:
            raise ImportError(f"{file} cannot be loaded as a Python file")
        module = importlib.util.module_from_spec(spec)
        vars(module).update(self._marks)
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": self._import}
        # Pydantic and dataclasses look a class's module up by its name to resolve annotations.
        sys.modules[name] = self._loaded[file] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name], self._loaded[file]
            raise
        return module

    def _import(
        self,
        name: str,
        module_globals: Mapping[str, Any] | None = None,
        module_locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        file = (module_globals or {}).get("__file__")
        importer = Path(file) if isinstance(file, str) else None
        near = None
        if importer is not None and (level or not is_served(name)):
            near = near_module(importer, name, level)
        if importer is None or near is None:
            if importer is not None and level:
                name, level = _absolute(importer, name, level), 0
            return self._usual(name, module_globals, module_locals, fromlist, level)
        if not fromlist:
            return self._outermost(importer, name)
        module = self._at(near)
        for attribute in fromlist:
            inner = None if hasattr(module, attribute) else _submodule(near, attribute)
            if inner is not None:
                setattr(module, attribute, self._at(inner))
        return module

    def _at(self, place: Path) -> ModuleType:
        if place.is_file():
            return self.load(place)
        if place not in self._loaded:
            self._loaded[place] = ModuleType(place.name)
        return self._loaded[place]

    def _outermost(self, importer: Path, name: str) -> ModuleType:
        """`import a.b.c` binds a, which leads to the inner ones."""
        inner: ModuleType | None = None
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            near = near_module(importer, ".".join(parts[:length]))
            if near is None:
                raise ImportError(f"no module {name!r} near {importer}")
            module = self._at(near)
            if inner is not None:
                setattr(module, parts[length], inner)
            inner = module
        assert inner is not None  # noqa: S101 - a name has a part
        return inner


def _submodule(place: Path, name: str) -> Path | None:
    if place.is_dir():
        return module_at(place, [name])
    return module_at(place.parent, [name]) if place.name == "__init__.py" else None


def _absolute(importer: Path, name: str, level: int) -> str:
    """A relative import's name by the packages that the file is in, for what is no Python file there."""
    package = dotted_name(importer).split(".")
    if level > len(package) or not package[0]:
        raise ImportError(f"{'.' * level}{name} is imported, and there is no such module near {importer}")
    return ".".join([*package[: len(package) - level + 1], *filter(None, [name])])
