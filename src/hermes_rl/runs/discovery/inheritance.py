"""Who derives from whom, across files: each class gets an empty class in its stead, with the same bases.

Always true: the order in which Python would look things up is Python's own, since the stand-ins have it; and no file's
code is run. What cannot be followed (a module that is not there, a call in place of a base) is left out and noted.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from hermes_rl.neighbours import NEVER_NEAR, installed_module, module_at, near_module
from hermes_rl.runs.discovery.found import Kind
from hermes_rl.runs.discovery.module import Defined, Here, Meaning, Meanings, Module, There
from hermes_rl.runs.discovery.source import resolved

Read = Callable[[Path], Module | None]

HERMES = type("HermesAgentBaseEnv", (), {})
ATROPOS = type("BaseEnv", (), {})
# What each leaves to its subclasses.
LACKS = {HERMES: ("format_prompt", "compute_reward"), ATROPOS: ("get_next_item", "evaluate")}
BASE_NAMES = ("HermesAgentBaseEnv", "BaseEnv")
_SEEDS_MODULE = "environments.hermes_base_env"
_BUNDLED = "hermes_rl.bundled"
# Files that no folder of environments has, such as those of an installed package.
_MOST_FOLLOWED = 500
_DEEPEST = 40


class InheritanceError(Exception):
    """Python would refuse this class."""


class Ancestry:
    """The stand-ins of one discovery."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._made: dict[tuple[Path, int], type | None] = {}
        self._followed: set[Path] = set()
        self.written: dict[type, tuple[Path, Defined]] = {}
        self.unknown: dict[type, tuple[str, ...]] = {}
        """The bases of a class that could not be followed, as its file names them."""

    def stand_in(self, file: Path, index: int, module: Module) -> type:
        """InheritanceError when Python would not make such a class."""
        key = file, index
        known = self._made.get(key)
        if known is not None:
            return known
        if key in self._made:
            raise InheritanceError("it derives from itself")
        self._made[key] = None
        try:
            made = self._make(file, module.classes[index], module)
        except BaseException:
            del self._made[key]
            raise
        self._made[key] = made
        return made

    def named(self, file: Path, name: str) -> list[type]:
        """The classes that a file has by a name, its own or imported ones."""
        try:
            return list(self._inside(file, tuple(name.split(".")), 0))
        except (InheritanceError, RecursionError):
            return []

    def _make(self, file: Path, defined: Defined, module: Module) -> type:
        bases, unknown = list[type](), list[str]()
        for meanings in defined.bases:
            base = self._first(file, meanings, module)
            if base is not None:
                bases.append(base)
            else:
                unknown += [str(one) for one in meanings if isinstance(one, There) and not _is_pythons(one)]
                unknown += [] if meanings else ["a base that only running the file would tell"]
        try:
            made = type(defined.name, tuple(bases), {})
        except TypeError as error:
            raise InheritanceError(" ".join(str(error).split())) from None
        self.written[made] = file, defined
        self.unknown[made] = tuple(unknown)
        return made

    def _first(self, file: Path, meanings: Meanings, module: Module) -> type | None:
        """What branches differ in: the one that makes an environment, else any."""
        found = [made for one in meanings for made in self._behind(file, one, module, 0)]
        return next((made for made in found if kind_of(made)), found[0] if found else None)

    def _behind(self, file: Path, meaning: Meaning, module: Module, depth: int) -> Iterator[type]:
        """The classes that a meaning may stand for."""
        if isinstance(meaning, Here):
            yield self.stand_in(file, meaning.index, module)
            return
        root = _root(meaning)
        if root is not None:
            yield root
        elif depth < _DEEPEST and not _is_pythons(meaning):
            place = self._module_file(file, meaning)
            if place is not None:
                yield from self._inside(place, meaning.path, depth + 1)

    def _inside(self, place: Path, path: tuple[str, ...], depth: int) -> Iterator[type]:
        """The classes that `path` may stand for in a module's file or folder."""
        if not path:
            return
        place = resolved(place)
        module = None if place.is_dir() else self._read_bounded(place)
        first, *rest = path
        if module is not None and first in module.names:
            for meaning in module.names[first]:
                if isinstance(meaning, There):
                    deeper = There(meaning.level, meaning.name, (*meaning.path, *rest))
                    yield from self._behind(place, deeper, module, depth)
                elif not rest:
                    yield self.stand_in(place, meaning.index, module)
            return
        package = place if place.is_dir() else place.parent if place.name == "__init__.py" else None
        inner = module_at(package, [first]) if package is not None else None
        if inner is not None and rest:
            yield from self._inside(inner, tuple(rest), depth)
        elif module is not None and depth < _DEEPEST:
            for star in module.stars:
                yield from self._behind(place, There(star.level, star.name, path), module, depth + 1)

    def _module_file(self, file: Path, there: There) -> Path | None:
        if there.name or there.level:
            near = near_module(file, there.name, there.level)
            if near is not None or there.level:
                return near
        return installed_module(there.name)

    def _read_bounded(self, file: Path) -> Module | None:
        if file not in self._followed and len(self._followed) >= _MOST_FOLLOWED:
            return None
        self._followed.add(file)
        return self._read(file)


def kind_of(stand_in: type) -> Kind | None:
    """None for a class that is no environment."""
    if HERMES in stand_in.__mro__:
        return Kind.HERMES
    return Kind.ATROPOS if ATROPOS in stand_in.__mro__ else None


def label_of(stand_in: type, ancestry: Ancestry) -> str | None:
    """Its attribute `name`, its own or inherited."""
    for one in stand_in.__mro__:
        if one in LACKS:
            # Its own `name` is None, and hides that of a base after it.
            return None
        if one in ancestry.written and "name" in (defined := ancestry.written[one][1]).defines:
            return defined.label
    return None


def lacking(stand_in: type, ancestry: Ancestry) -> list[str]:
    """The methods that are still abstract, by the rule of Python's ABC; none where a base is not known."""
    if any(ancestry.unknown.get(one) for one in stand_in.__mro__):
        return []
    settled, lacks = set[str](), list[str]()
    for one in stand_in.__mro__:
        abstract: tuple[str, ...] = LACKS.get(one, ())
        defines = frozenset(abstract)
        if one in ancestry.written:
            defined = ancestry.written[one][1]
            abstract, defines = tuple(sorted(defined.abstract)), defined.defines
        lacks += [name for name in abstract if name not in settled]
        settled |= defines
    return lacks


def _root(there: There) -> type | None:
    """A base class that is known by its name, whoever has it installed."""
    if there.level or not there.path:
        return None
    *within, name = there.path
    module = ".".join([there.name, *within])
    if module == _SEEDS_MODULE and name in BASE_NAMES:
        return HERMES
    top = there.name.partition(".")[0]
    if top == "hermes_rl" and name == "HermesAgentBaseEnv" and not module.startswith(_BUNDLED):
        return HERMES
    return ATROPOS if top == "atroposlib" and name == "BaseEnv" else None


def _is_pythons(there: There) -> bool:
    top = there.name.partition(".")[0]
    whole = str(there)
    return not there.level and top in NEVER_NEAR and not whole.startswith(f"{_BUNDLED}.")
