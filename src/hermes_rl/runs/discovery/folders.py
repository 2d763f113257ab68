"""Where environments are looked for: the bundled folder, the user's, and what installed packages announce.

The user's are `environments` below `rl_home()`, those that its `environments.txt` lists, one a line, and those in the
variable HERMES_RL_ENVIRONMENTS, which is read here alone.
"""

import os
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from hermes_rl.home import rl_home
from hermes_rl.neighbours import installed_module
from hermes_rl.runs.discovery.found import Broken, Source
from hermes_rl.shipped import bundled_folder

VARIABLE = "HERMES_RL_ENVIRONMENTS"
ENTRY_POINTS = "hermes_rl.environments"


@dataclass(frozen=True, slots=True)
class Place:
    """A folder or a file to look at; `only` is the one object of it that is meant."""

    path: Path
    source: Source
    only: str | None = None


def all_places() -> tuple[list[Place], list[Broken]]:
    """In the order in which they matter: who is earlier keeps a file that two of them have."""
    user, missing = _user_places()
    installed, lost = _installed_places()
    return [Place(bundled_folder(), Source.BUNDLED), *user, *installed], [*missing, *lost]


def own_folder() -> Path:
    return rl_home() / "environments"


def list_of_folders() -> Path:
    return rl_home() / "environments.txt"


def _user_places() -> tuple[list[Place], list[Broken]]:
    listed = [(path, f"{list_of_folders()} names it") for path in _listed()]
    listed += [
        (Path(text).expanduser(), f"the variable {VARIABLE} names it")
        for text in os.environ.get(VARIABLE, "").split(os.pathsep)
        if text
    ]
    places = [Place(own_folder(), Source.USER)] if own_folder().is_dir() else []
    broken = []
    for path, who in listed:
        if path.exists():
            places.append(Place(path, Source.USER))
        else:
            broken.append(Broken(path, f"{who}, but there is no such folder or file; make it, or take it out there"))
    return places, broken


def _listed() -> list[Path]:
    try:
        text = list_of_folders().read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    lines = (line.strip() for line in text.splitlines())
    return [rl_home() / Path(line).expanduser() for line in lines if line and not line.startswith("#")]


def _installed_places() -> tuple[list[Place], list[Broken]]:
    places, broken = [], []
    for entry in entry_points(group=ENTRY_POINTS):
        file = installed_module(entry.module)
        if file is None:
            owner = entry.dist.name if entry.dist is not None else "a package"
            why = f"{owner} announces the environment {entry.name!r} here, but no file of that module can be found"
            broken.append(Broken(Path(entry.module), f"{why}; install {owner} again"))
        else:
            whole = file.name == "__init__.py" and not entry.attr
            places.append(Place(file.parent if whole else file, Source.INSTALLED, entry.attr or None))
    return places, broken
