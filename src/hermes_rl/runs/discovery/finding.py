"""`find_environment(NAME)`: one environment by its name, its id, its file or FILE.py:CLASS.

Always true: what is not found is told with the nearest names, and with the next step.
"""

from difflib import get_close_matches
from pathlib import Path

from hermes_rl.errors import ConfigError
from hermes_rl.runs.discovery.found import Discovery, Found
from hermes_rl.runs.discovery.listing import discover
from hermes_rl.shipped import ALSO_KNOWN_AS, SUFFIX

_NEXT = "`hermes-rl env list` shows all"


def find_environment(name: str, discovery: Discovery | None = None) -> Found:
    """Names and ids are of `discovery`, which is made when it is not given; a file may be anywhere."""
    place, _, class_name = name.partition(":")
    if place.endswith(".py") or "/" in place:
        return _in_file(Path(place), class_name)
    discovery = discovery or discover()
    known = known_environment(name, discovery)
    if known is not None:
        return known
    bare, _, version = name.partition("@")
    if version and (current := known_environment(bare, discovery)) is not None:
        raise ConfigError(
            f"{bare!r} has no version {version!r}: its file {current.file} is {current.id} by now; "
            f"use that id, or {bare!r} for the version of the day"
        )
    raise ConfigError(_nowhere(bare, discovery))


def known_environment(name: str, discovery: Discovery) -> Found | None:
    """None when no environment of the discovery has that name or id."""
    by_name = {one.name: one for one in discovery.found} | {one.id: one for one in discovery.found}
    bare, at, version = name.partition("@")
    short = bare.removesuffix(SUFFIX)
    spellings = (bare, short, ALSO_KNOWN_AS.get(short, short))
    return next((by_name[one + at + version] for one in spellings if one + at + version in by_name), None)


def _in_file(file: Path, class_name: str) -> Found:
    if not file.is_file():
        raise ConfigError(f"there is no file {file}; give the path of a Python file, or a name: {_NEXT}")
    if file.suffix != ".py":
        raise ConfigError(f"{file} is no Python file; an environment's file ends in .py")
    look = discover([file])
    found = [one for one in look.found if class_name in ("", one.class_name)]
    if len(found) == 1:
        return found[0]
    classes = ", ".join(one.class_name for one in look.found)
    if found:
        raise ConfigError(f"{file} has several environments: {classes}; name one as {file}:{found[0].class_name}")
    if look.broken:
        raise ConfigError(f"{file} has no environment that can be used: {'; '.join(map(str, look.broken))}")
    if classes:
        raise ConfigError(f"{file} has no environment class {class_name!r}; it has: {classes}")
    raise ConfigError(f"{file} has no subclass of HermesAgentBaseEnv, nor of atroposlib's BaseEnv; docs/authors.md")


def _nowhere(name: str, discovery: Discovery) -> str:
    shared = [one for one in discovery.found if one.name.startswith(f"{name}.")]
    if len(shared) > 1:
        choices = ", ".join(f"{one.name} ({one.file})" for one in shared)
        return f"several environments are named {name!r}: choose one of {choices}"
    broken = [one for one in discovery.broken if one.file.stem.removesuffix(SUFFIX) == name.removesuffix(SUFFIX)]
    if broken:
        return f"the environment {name!r} cannot be used: {broken[0]}; mend that file"
    names = [one.name for one in discovery.found]
    near = get_close_matches(name, names, n=3, cutoff=0.5)
    told = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are: {', '.join(names) or 'none'}."
    return f"no environment is named {name!r}; {told} {_NEXT}; a file of your own goes by its path, as my_env.py"
