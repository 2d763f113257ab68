"""Loads an environment's file and its local imports as private modules.

sys.path is never edited, no module is registered under an importable name, and each loader runs each file once.
`resolve_local_import` decides what is local; other imports work as usual. The seeds' `environments.*` modules are
always ours here, also next to a checkout of hermes-agent that has its own.
"""

import builtins
import hashlib
import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from _hermes_rl_imports import MODULES
from hermes_rl.environment.loading.import_resolution import module_at, package_name, resolve_local_import


class PrivateModules:
    """The modules of one load, by file. `extra_globals` are set in each module before it runs."""

    def __init__(self, extra_globals: Mapping[str, object]) -> None:
        self._extra_globals = extra_globals
        self._loaded: dict[Path, ModuleType] = {}

    def load(self, file: Path) -> ModuleType:
        """Run a file, or return its module if it ran before; its exceptions propagate."""
        file = file.resolve()
        if file in self._loaded:
            return self._loaded[file]
        # Files with the same name in different folders are different modules.
        name = f"hermes_rl_environment_{file.stem}_{hashlib.sha256(bytes(file)).hexdigest()[:8]}"
        inner = [str(file.parent)] if file.name == "__init__.py" else None
        loader = _FromSource(name, str(file))
        spec = spec_from_file_location(name, file, loader=loader, submodule_search_locations=inner)
        assert spec is not None  # noqa: S101 - it has a loader
        module = module_from_spec(spec)
        vars(module).update(self._extra_globals)
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": self._import}
        # Pydantic and dataclasses look up a class's module by name to resolve annotations.
        sys.modules[name] = self._loaded[file] = module
        try:
            loader.exec_module(module)
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
        alias = None if level else seed_module(name)
        if alias is not None:
            return alias if fromlist else _package_with(name, alias)
        local = None if importer is None else resolve_local_import(importer, name, level)
        if importer is None or local is None:
            if importer is not None and level:
                name, level = _absolute(importer, name, level), 0
            return builtins.__import__(name, module_globals, module_locals, fromlist or (), level)
        if not fromlist:
            return self._outermost(importer, name)
        module = self._module_at(local)
        for attribute in fromlist:
            if hasattr(module, attribute):
                continue
            if (alias := None if level else seed_module(f"{name}.{attribute}")) is not None:
                setattr(module, attribute, alias)
            elif (inner := _submodule(local, attribute)) is not None:
                setattr(module, attribute, self._module_at(inner))
        return module

    def _module_at(self, path: Path) -> ModuleType:
        if path.is_file():
            return self.load(path)
        if path not in self._loaded:
            self._loaded[path] = ModuleType(path.name)
        return self._loaded[path]

    def _outermost(self, importer: Path, name: str) -> ModuleType:
        """Import `a.b.c` and return `a`, with its submodules as attributes."""
        inner: ModuleType | None = None
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            local = resolve_local_import(importer, ".".join(parts[:length]))
            if local is None:
                raise ImportError(f"no local module {name!r} for {importer}")
            module = self._module_at(local)
            if inner is not None:
                setattr(module, parts[length], inner)
            inner = module
        assert inner is not None  # noqa: S101 - a name has a part
        return inner


class _FromSource(SourceFileLoader):
    """Compiles the source each time.

    Python keeps bytecode by a file's size and its time in whole seconds, so a file that changes twice within a second
    would run as it was before.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def seed_module(name: str) -> ModuleType | None:
    """Our module for a name such as `environments.agent_loop`; None for any other."""
    source = MODULES.get(name) if name.startswith("environments.") else None
    return None if source is None else importlib.import_module(source)


def _package_with(name: str, module: ModuleType) -> ModuleType:
    """`import a.b` binds `a`: a package with this module in it."""
    package, _, child = name.rpartition(".")
    outer = ModuleType(package)
    setattr(outer, child, module)
    return outer


def _submodule(path: Path, name: str) -> Path | None:
    if path.is_dir():
        return module_at(path, [name])
    return module_at(path.parent, [name]) if path.name == "__init__.py" else None


def _absolute(importer: Path, name: str, level: int) -> str:
    """The absolute name of a relative import, for targets that are not Python files."""
    package = package_name(importer).split(".")
    if level > len(package) or not package[0]:
        raise ImportError(f"{'.' * level}{name} is imported, but there is no such module near {importer}")
    return ".".join([*package[: len(package) - level + 1], *filter(None, [name])])
