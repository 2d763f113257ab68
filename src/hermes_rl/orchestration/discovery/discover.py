"""`discover()`: list all environments without running their code.

A class is listed when it derives, at any depth, from HermesAgentBaseEnv or atroposlib's BaseEnv, unless its name begins
with `_` or it is marked abstract (an ABC base or an abstract method). A class with missing abstract methods is skipped
if others derive from it, and reported as broken if none does. A file that imports what is not installed is broken.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hermes_rl.core.paths import SUFFIX
from hermes_rl.orchestration.discovery.folders import SearchPath, all_search_paths
from hermes_rl.orchestration.discovery.imports import missing_import
from hermes_rl.orchestration.discovery.inheritance import (
    BASE_NAMES,
    Ancestry,
    InheritanceError,
    base_class_kind,
    inherited_label,
    missing_methods,
)
from hermes_rl.orchestration.discovery.module import ClassDefinition, Module
from hermes_rl.orchestration.discovery.source import SourceFile, SourceProblem, read_source, resolve_path
from hermes_rl.orchestration.discovery.types import BrokenFile, DiscoveredEnvironment, Discovery, EnvironmentSource

MAX_FILES = 5_000
MAX_ENTRIES = 200_000
SKIPPED_FOLDERS = frozenset("__pycache__ node_modules site-packages dist-packages".split())


def discover(folders: Sequence[Path] | None = None) -> Discovery:
    """All environments; with `folders` only those in these folders and files, which count as the user's."""
    if folders is None:
        search_paths, broken = all_search_paths()
    else:
        search_paths, broken = [SearchPath(folder, EnvironmentSource.USER) for folder in folders], []
    scan = _DiscoveryScan(broken=broken)
    for search_path in search_paths:
        scan.scan(search_path)
    found, notes = with_unique_names(list(scan.listed()))
    found.sort(key=lambda env: (list(EnvironmentSource).index(env.source), env.name))
    return Discovery(tuple(found), tuple(scan.broken), tuple(notes))


@dataclass(frozen=True, slots=True)
class _Candidate:
    class_stub: type
    source: EnvironmentSource


@dataclass(slots=True)
class _DiscoveryScan:
    """One scan of all search paths: each file is read once, for a consistent view."""

    broken: list[BrokenFile]
    sources: dict[Path, SourceFile | SourceProblem] = field(default_factory=dict)
    scanned: dict[Path, set[str] | None] = field(default_factory=dict)
    """The classes of a file that were considered; None for all."""
    candidates: dict[type, _Candidate] = field(default_factory=dict)
    ancestry: Ancestry = field(init=False)

    def __post_init__(self) -> None:
        self.ancestry = Ancestry(self._module)

    def scan(self, search_path: SearchPath) -> None:
        for file in [search_path.path] if search_path.path.suffix == ".py" else python_files(search_path.path):
            if isinstance(file, BrokenFile):
                self.broken.append(file)
            elif len(self.scanned) >= MAX_FILES:
                why = f"skipped, because {MAX_FILES} Python files were read before it; give narrower folders"
                self.broken.append(BrokenFile(search_path.path, why))
                return
            else:
                self._scan_file(resolve_path(file), search_path)

    def _scan_file(self, file: Path, search_path: SearchPath) -> None:
        if file in self.scanned and (self.scanned[file] is None or search_path.only in (self.scanned[file] or ())):
            return
        first = file not in self.scanned
        source = self._source(file)
        if isinstance(source, SourceProblem):
            self.scanned[file] = None
            if first:
                self.broken.append(BrokenFile(file, source.why, source.line))
            return
        if search_path.only is None:
            self.scanned[file] = None
            self._add_candidates(file, source.module, search_path)
        else:
            self.scanned[file] = (self.scanned.get(file) or set()) | {search_path.only}
            self._add_announced_class(file, search_path, search_path.only)

    def _add_candidates(self, file: Path, module: Module, search_path: SearchPath) -> None:
        taken = set[str]()
        for index, defined in module.named_classes():
            if defined.name in taken:
                continue
            try:
                class_stub = self.ancestry.class_stub(file, index, module)
            except (InheritanceError, RecursionError) as error:
                why = "its bases are nested too deeply" if isinstance(error, RecursionError) else str(error)
                self.broken.append(BrokenFile(file, f"class {defined.name}: {why}", defined.line))
                continue
            if base_class_kind(class_stub) is not None:
                taken.add(defined.name)
                self.candidates.setdefault(class_stub, _Candidate(class_stub, search_path.source))
            else:
                self._report_unresolved_base(file, defined, class_stub)

    def _add_announced_class(self, file: Path, search_path: SearchPath, name: str) -> None:
        """The class of an installed package's entry point, which the file may import from elsewhere."""
        found = [stub for stub in self.ancestry.classes_named(file, name) if base_class_kind(stub) is not None]
        if not found:
            self.broken.append(BrokenFile(file, f"an entry point names the environment {name}, which is not in it"))
        for class_stub in found:
            self.candidates.setdefault(class_stub, _Candidate(class_stub, search_path.source))

    def _report_unresolved_base(self, file: Path, defined: ClassDefinition, class_stub: type) -> None:
        bases = [base for base in self.ancestry.unresolved_bases[class_stub] if base.rpartition(".")[2] in BASE_NAMES]
        if bases:
            why = f"class {defined.name} derives from {bases[0]}, which is neither installed nor next to this file"
            self.broken.append(BrokenFile(file, why, defined.line))

    def listed(self) -> Iterator[DiscoveredEnvironment]:
        parents = {base for class_stub in self.candidates for base in class_stub.__mro__[1:]}
        for candidate in self.candidates.values():
            file, defined = self.ancestry.definitions[candidate.class_stub]
            if defined.name.startswith("_") or defined.is_marked_abstract:
                continue
            missing = missing_methods(candidate.class_stub, self.ancestry)
            if not missing:
                problem = missing_import(file, self._module)
                if problem is None:
                    yield self._discovered(candidate, file, defined)
                elif problem not in self.broken:
                    self.broken.append(problem)
            elif candidate.class_stub not in parents:
                self.broken.append(BrokenFile(file, _abstract_class_message(defined.name, missing), defined.line))

    def _discovered(self, candidate: _Candidate, file: Path, defined: ClassDefinition) -> DiscoveredEnvironment:
        source, kind = self._source(file), base_class_kind(candidate.class_stub)
        # Otherwise it would not be a candidate.
        assert isinstance(source, SourceFile)  # noqa: S101
        assert kind is not None  # noqa: S101
        return DiscoveredEnvironment(
            name=environment_name(file, inherited_label(candidate.class_stub, self.ancestry)),
            version=source.version,
            class_name=defined.name,
            file=file,
            line=defined.line,
            source=candidate.source,
            kind=kind,
            description=defined.description or source.module.description,
        )

    def _module(self, file: Path) -> Module | None:
        source = self._source(resolve_path(file))
        return source.module if isinstance(source, SourceFile) else None

    def _source(self, file: Path) -> SourceFile | SourceProblem:
        if file not in self.sources:
            self.sources[file] = read_source(file)
        return self.sources[file]


def _abstract_class_message(name: str, missing: list[str]) -> str:
    return f"class {name} lacks {' and '.join(missing)}; define it, or rename the class to _{name} if it is only a base"


# Unique names. A bundled environment always keeps its name, so no file can shadow it silently. Names contain no
# character that is special in a path, an id or a reference.


def environment_name(file: Path, label: str | None) -> str:
    """The class's `name`, else the file's name without `_env`."""
    stem = file.parent.name if file.stem == "__init__" else file.stem
    name = re.sub(r"[^\w.-]+", "_", label or "").strip("._-")
    return name or stem.removesuffix(SUFFIX) or stem


def with_unique_names(found: list[DiscoveredEnvironment]) -> tuple[list[DiscoveredEnvironment], list[str]]:
    """The environments with unique names, and a note for each name that several had."""
    shared = {name for name, count in Counter(env.name for env in found).items() if count > 1}
    renamed: list[DiscoveredEnvironment] = []
    notes: list[str] = []
    taken = {env.name for env in found if env.name not in shared}
    for name in sorted(shared):
        same = [env for env in found if env.name == name]
        bundled = next((env for env in same if env.source is EnvironmentSource.BUNDLED), None)
        new = _qualified_names([env for env in same if env is not bundled], taken)
        taken.update([name, *(env.name for env in new)])
        renamed += new if bundled is None else [bundled, *new]
        new_names = ", ".join(f"{env.name} ({env.reference})" for env in new)
        owner = "" if bundled is None else "; the bundled one keeps it"
        notes.append(
            f"{len(same)} environments are named {name!r}{owner}: listed as {new_names}; give each its own `name`"
        )
    return [env for env in found if env.name not in shared] + renamed, notes


def _qualified_names(same: list[DiscoveredEnvironment], taken: set[str]) -> list[DiscoveredEnvironment]:
    """Add the class, else class and file, else the folder too, else a number: the first that makes them unique."""
    schemes: list[Callable[[DiscoveredEnvironment], str]] = [
        lambda env: f"{env.name}.{env.class_name}",
        lambda env: f"{env.name}.{env.file.stem}.{env.class_name}",
        lambda env: f"{env.name}.{env.file.parent.name}.{env.file.stem}.{env.class_name}",
    ]
    for scheme in schemes:
        names = [re.sub(r"[^\w.-]+", "_", scheme(env)) for env in same]
        if len(set(names)) == len(names) and not taken & set(names):
            return [replace(env, name=name) for env, name in zip(same, names, strict=True)]
    numbered = []
    for env in sorted(same, key=lambda env: env.reference):
        number = 2
        while f"{env.name}.{number}" in taken:
            number += 1
        taken.add(f"{env.name}.{number}")
        numbered.append(replace(env, name=f"{env.name}.{number}"))
    return numbered


# The Python files below a folder, at any depth. Each folder is entered once, even through links, and the walk is
# bounded.


def python_files(folder: Path, max_files: int = MAX_FILES) -> Iterator[Path | BrokenFile]:
    """Files in a fixed order; BrokenFile for an unreadable folder, and where the walk stopped early."""
    pending, entered = [folder], set[tuple[int, int]]()
    files = entries = 0
    while pending:
        current = pending.pop()
        try:
            status = current.stat()
            if (status.st_dev, status.st_ino) in entered:
                continue
            entered.add((status.st_dev, status.st_ino))
            with os.scandir(current) as listing:
                children = sorted(listing, key=lambda child: child.name)
        except OSError as error:
            yield BrokenFile(current, f"cannot read this folder: {error.strerror}")
            continue
        inner = []
        for child in children:
            entries += 1
            if _is_dir(child):
                if not child.name.startswith(".") and child.name not in SKIPPED_FOLDERS and not _is_venv(child):
                    inner.append(Path(child.path))
            elif child.name.endswith(".py") and not child.name.startswith("."):
                files += 1
                if files <= max_files:
                    yield Path(child.path)
        if files > max_files or entries > MAX_ENTRIES:
            limit = f"{max_files} Python files" if files > max_files else f"{MAX_ENTRIES} entries"
            yield BrokenFile(folder, f"it has more than {limit}, the rest was skipped; give narrower folders")
            return
        pending.extend(reversed(inner))


def _is_dir(child: os.DirEntry[str]) -> bool:
    try:
        return child.is_dir()
    except OSError:
        return False


def _is_venv(child: os.DirEntry[str]) -> bool:
    try:
        return Path(child.path, "pyvenv.cfg").is_file()
    except OSError:
        return False
