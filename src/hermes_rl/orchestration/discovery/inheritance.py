"""Class inheritance across files: each class gets an empty stub class with the same bases.

Always true: the method resolution order is Python's own, because the stubs are real classes; no file's code is run.
A base that cannot be resolved (a missing module, a call) is left out and recorded.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from hermes_rl.environment.loading.import_resolution import (
    NEVER_LOCAL,
    find_installed,
    installed_module,
    module_at,
    resolve_local_import,
)
from hermes_rl.orchestration.discovery.module import (
    Binding,
    Bindings,
    ClassDefinition,
    ImportedName,
    LocalClass,
    Module,
)
from hermes_rl.orchestration.discovery.source import resolve_path
from hermes_rl.orchestration.discovery.types import BaseClassKind

Read = Callable[[Path], Module | None]

HERMES = type("HermesAgentBaseEnv", (), {})
SEVERAL_AGENTS = type("HermesMultiAgentEnv", (HERMES,), {})
TEXT_GAME = type("TextGameEnv", (HERMES,), {})
ATROPOS = type("BaseEnv", (), {})
# The abstract methods of each base. Without atroposlib, its BaseEnv is ours, which needs one of COLLECT_METHODS.
ABSTRACT_METHODS = {
    HERMES: ("format_prompt", "compute_reward"),
    SEVERAL_AGENTS: ("compute_seat_rewards", "seat_prompt"),
    ATROPOS: ("get_next_item", "evaluate"),
}
# What a base has of the abstract methods of its own base.
DEFINED_METHODS = dict.fromkeys((SEVERAL_AGENTS, TEXT_GAME), ABSTRACT_METHODS[HERMES])
COLLECT_METHODS = frozenset({"collect_trajectories", "collect_trajectory"})
BASE_NAMES = ("HermesAgentBaseEnv", "BaseEnv")
_SEEDS_MODULE = "environments.hermes_base_env"
_BUNDLED = "hermes_rl.bundled"
# Limit on files that imports lead to, such as those of an installed package.
_MAX_FILES_READ = 500
_MAX_DEPTH = 40


class InheritanceError(Exception):
    """Python would reject this class."""


class Ancestry:
    """The class stubs of one discovery."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._stubs: dict[tuple[Path, int], type | None] = {}
        self._files_read: set[Path] = set()
        self.definitions: dict[type, tuple[Path, ClassDefinition]] = {}
        self.unresolved_bases: dict[type, tuple[str, ...]] = {}
        """The bases of a class that could not be resolved, as written in its file."""

    def class_stub(self, file: Path, index: int, module: Module) -> type:
        """InheritanceError when Python could not create such a class."""
        key = file, index
        known = self._stubs.get(key)
        if known is not None:
            return known
        if key in self._stubs:
            raise InheritanceError("it derives from itself")
        self._stubs[key] = None
        try:
            stub = self._make(file, module.classes[index], module)
        except BaseException:
            del self._stubs[key]
            raise
        self._stubs[key] = stub
        return stub

    def classes_named(self, file: Path, name: str) -> list[type]:
        """The classes that a name may refer to in a file, its own or imported ones."""
        try:
            return list(self._resolve_in_module(file, tuple(name.split(".")), 0))
        except (InheritanceError, RecursionError):
            return []

    def _make(self, file: Path, defined: ClassDefinition, module: Module) -> type:
        bases, unresolved = list[type](), list[str]()
        for bindings in defined.bases:
            base = self._preferred_base(file, bindings, module)
            if base is not None:
                bases.append(base)
            else:
                names = (binding for binding in bindings if isinstance(binding, ImportedName))
                unresolved += [str(name) for name in names if not _is_standard(name)]
                unresolved += [] if bindings else ["a base that is computed at run time"]
        try:
            stub = type(defined.name, tuple(bases), {})
        except TypeError as error:
            raise InheritanceError(" ".join(str(error).split())) from None
        self.definitions[stub] = file, defined
        self.unresolved_bases[stub] = tuple(unresolved)
        return stub

    def _preferred_base(self, file: Path, bindings: Bindings, module: Module) -> type | None:
        """Of several branches, the base that makes the class an environment, else the first."""
        found = [stub for binding in bindings for stub in self._resolve_binding(file, binding, module, 0)]
        return next((stub for stub in found if base_class_kind(stub)), found[0] if found else None)

    def _resolve_binding(self, file: Path, binding: Binding, module: Module, depth: int) -> Iterator[type]:
        """The classes that a binding may refer to."""
        if isinstance(binding, LocalClass):
            yield self.class_stub(file, binding.index, module)
            return
        base = _known_base(binding)
        if base is not None:
            yield base
        elif depth < _MAX_DEPTH and not _is_standard(binding):
            location = self._find_module(file, binding)
            if location is not None:
                yield from self._resolve_in_module(location, binding.path, depth + 1)

    def _resolve_in_module(self, location: Path, path: tuple[str, ...], depth: int) -> Iterator[type]:
        """The classes that `path` may refer to in a module's file or folder."""
        if not path:
            return
        location = resolve_path(location)
        module = None if location.is_dir() else self._read_bounded(location)
        first, *rest = path
        if module is not None and first in module.names:
            for binding in module.names[first]:
                if isinstance(binding, ImportedName):
                    yield from self._resolve_binding(location, binding.member(*rest), module, depth)
                elif not rest:
                    yield self.class_stub(location, binding.index, module)
            return
        package = location if location.is_dir() else location.parent if location.name == "__init__.py" else None
        inner = module_at(package, [first]) if package is not None else None
        if inner is not None and rest:
            yield from self._resolve_in_module(inner, tuple(rest), depth)
        elif module is not None and depth < _MAX_DEPTH:
            for star in module.star_imports:
                yield from self._resolve_binding(location, star.member(*path), module, depth + 1)

    def _find_module(self, file: Path, imported: ImportedName) -> Path | None:
        if imported.name or imported.level:
            local = resolve_local_import(file, imported.name, imported.level)
            if local is not None or imported.level:
                return local
        return installed_module(imported.name)

    def _read_bounded(self, file: Path) -> Module | None:
        if file not in self._files_read and len(self._files_read) >= _MAX_FILES_READ:
            return None
        self._files_read.add(file)
        return self._read(file)


def base_class_kind(class_stub: type) -> BaseClassKind | None:
    """None for a class that is not an environment."""
    if HERMES in class_stub.__mro__:
        return BaseClassKind.HERMES
    return BaseClassKind.ATROPOS if ATROPOS in class_stub.__mro__ else None


def has_atroposlib() -> bool:
    return find_installed("atroposlib") is not None


def inherited_label(class_stub: type, ancestry: Ancestry) -> str | None:
    """The class attribute `name`, own or inherited."""
    for base in class_stub.__mro__:
        if base in ABSTRACT_METHODS:
            # Its `name` is None, and hides that of the bases after it.
            return None
        if base in ancestry.definitions and "name" in (defined := ancestry.definitions[base][1]).defines:
            return defined.label
    return None


def missing_methods(class_stub: type, ancestry: Ancestry) -> list[str]:
    """The methods that are still abstract, as Python's ABC counts them; none if a base is unresolved."""
    if any(ancestry.unresolved_bases.get(base) for base in class_stub.__mro__):
        return []
    seen, missing = set[str](), list[str]()
    for base in class_stub.__mro__:
        abstract: tuple[str, ...] = ABSTRACT_METHODS.get(base, ())
        defines = frozenset((*abstract, *DEFINED_METHODS.get(base, ())))
        if base in ancestry.definitions:
            defined = ancestry.definitions[base][1]
            abstract, defines = tuple(sorted(defined.abstract)), defined.defines
        elif base is ATROPOS and not has_atroposlib():
            abstract = () if seen & COLLECT_METHODS else ("collect_trajectories",)
        missing += [name for name in abstract if name not in seen]
        seen |= defines
    return missing


def _known_base(imported: ImportedName) -> type | None:
    """A base class known by its import path, installed or not."""
    if imported.level or not imported.path:
        return None
    *within, name = imported.path
    module = ".".join([imported.name, *within])
    if module == _SEEDS_MODULE and name in BASE_NAMES:
        return HERMES
    top = imported.name.partition(".")[0]
    if top == "hermes_rl" and not module.startswith(_BUNDLED):
        ours = next((base for base in (HERMES, SEVERAL_AGENTS, TEXT_GAME) if base.__name__ == name), None)
        if ours is not None:
            return ours
    return ATROPOS if top == "atroposlib" and name == "BaseEnv" else None


def _is_standard(imported: ImportedName) -> bool:
    top = imported.name.partition(".")[0]
    return not imported.level and top in NEVER_LOCAL and not str(imported).startswith(f"{_BUNDLED}.")
