"""`discover()`: every environment there is, without running any of it.

A class is listed when it derives, at any depth, from HermesAgentBaseEnv or atroposlib's BaseEnv, unless its name begins
with `_`, it says that it is abstract (ABC among its bases, or an abstract method of its own), or it lacks a method that
its base leaves open: then it is passed over where others derive from it, and told as broken where none does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hermes_rl.runs.discovery.folders import Place, all_places
from hermes_rl.runs.discovery.found import Broken, Discovery, Found
from hermes_rl.runs.discovery.found import Source as Whence
from hermes_rl.runs.discovery.inheritance import (
    BASE_NAMES,
    Ancestry,
    InheritanceError,
    kind_of,
    label_of,
    lacking,
)
from hermes_rl.runs.discovery.module import Defined, Module
from hermes_rl.runs.discovery.naming import distinct, plain_name
from hermes_rl.runs.discovery.source import Flaw, Source, read_source, resolved
from hermes_rl.runs.discovery.walking import MOST_FILES, python_files


def discover(folders: Sequence[Path] | None = None) -> Discovery:
    """All environments; with `folders` only those in these folders and files, which then count as the user's."""
    if folders is None:
        places, broken = all_places()
    else:
        places, broken = [Place(folder, Whence.USER) for folder in folders], []
    look = _Look(broken=broken)
    for place in places:
        look.scan(place)
    found, notes = distinct(list(look.listed()))
    found.sort(key=lambda one: (list(Whence).index(one.source), one.name))
    return Discovery(tuple(found), tuple(look.broken), tuple(notes))


@dataclass(frozen=True, slots=True)
class _Candidate:
    stand_in: type
    source: Whence


@dataclass(slots=True)
class _Look:
    """One look at all places: each file is read once, so that all is of one moment."""

    broken: list[Broken]
    sources: dict[Path, Source | Flaw] = field(default_factory=dict)
    scanned: dict[Path, set[str] | None] = field(default_factory=dict)
    """Which classes of a file count; None for all."""
    candidates: dict[type, _Candidate] = field(default_factory=dict)
    ancestry: Ancestry = field(init=False)

    def __post_init__(self) -> None:
        self.ancestry = Ancestry(self._module)

    def scan(self, place: Place) -> None:
        for file in [place.path] if place.path.suffix == ".py" else python_files(place.path):
            if isinstance(file, Broken):
                self.broken.append(file)
            elif len(self.scanned) >= MOST_FILES:
                why = f"{MOST_FILES} Python files were looked at before it, and no more are; name narrower folders"
                self.broken.append(Broken(place.path, why))
                return
            else:
                self._take(resolved(file), place)

    def _take(self, file: Path, place: Place) -> None:
        if file in self.scanned and (self.scanned[file] is None or place.only in (self.scanned[file] or ())):
            return
        first = file not in self.scanned
        source = self._source(file)
        if isinstance(source, Flaw):
            self.scanned[file] = None
            if first:
                self.broken.append(Broken(file, source.why, source.line))
            return
        if place.only is None:
            self.scanned[file] = None
            self._consider(file, source.module, place)
        else:
            self.scanned[file] = (self.scanned.get(file) or set()) | {place.only}
            self._consider_one(file, place, place.only)

    def _consider(self, file: Path, module: Module, place: Place) -> None:
        taken = set[str]()
        for index, defined in module.own_classes():
            if defined.name in taken:
                continue
            try:
                stand_in = self.ancestry.stand_in(file, index, module)
            except (InheritanceError, RecursionError) as error:
                why = "its bases are nested too deep" if isinstance(error, RecursionError) else str(error)
                self.broken.append(Broken(file, f"class {defined.name}: {why}", defined.line))
                continue
            if kind_of(stand_in) is not None:
                taken.add(defined.name)
                self.candidates.setdefault(stand_in, _Candidate(stand_in, place.source))
            else:
                self._note_lost_base(file, defined, stand_in)

    def _consider_one(self, file: Path, place: Place, name: str) -> None:
        """An installed package announces one class, which the file may have from elsewhere."""
        found = [one for one in self.ancestry.named(file, name) if kind_of(one) is not None]
        if not found:
            self.broken.append(Broken(file, f"it is announced to have the environment {name}, and has no such class"))
        for stand_in in found:
            self.candidates.setdefault(stand_in, _Candidate(stand_in, place.source))

    def _note_lost_base(self, file: Path, defined: Defined, stand_in: type) -> None:
        lost = [base for base in self.ancestry.unknown[stand_in] if base.rpartition(".")[2] in BASE_NAMES]
        if lost:
            why = f"class {defined.name} derives from {lost[0]}, which is neither installed nor beside this file"
            self.broken.append(Broken(file, why, defined.line))

    def listed(self) -> Iterator[Found]:
        parents = {base for stand_in in self.candidates for base in stand_in.__mro__[1:]}
        for candidate in self.candidates.values():
            file, defined = self.ancestry.written[candidate.stand_in]
            if defined.name.startswith("_") or defined.is_marked_abstract:
                continue
            lacks = lacking(candidate.stand_in, self.ancestry)
            if not lacks:
                yield self._found(candidate, file, defined)
            elif candidate.stand_in not in parents:
                self.broken.append(Broken(file, _unfinished(defined.name, lacks), defined.line))

    def _found(self, candidate: _Candidate, file: Path, defined: Defined) -> Found:
        source, kind = self._source(file), kind_of(candidate.stand_in)
        # It would be no candidate otherwise.
        assert isinstance(source, Source)  # noqa: S101
        assert kind is not None  # noqa: S101
        return Found(
            name=plain_name(file, label_of(candidate.stand_in, self.ancestry)),
            version=source.version,
            class_name=defined.name,
            file=file,
            line=defined.line,
            source=candidate.source,
            kind=kind,
            description=defined.description or source.module.description,
        )

    def _module(self, file: Path) -> Module | None:
        source = self._source(resolved(file))
        return source.module if isinstance(source, Source) else None

    def _source(self, file: Path) -> Source | Flaw:
        if file not in self.sources:
            self.sources[file] = read_source(file)
        return self.sources[file]


def _unfinished(name: str, lacks: list[str]) -> str:
    missing = " and ".join(lacks)
    return f"class {name} lacks {missing}; define what is missing, or call it _{name} if it is only a base of others"
