"""Search paths for environments: the bundled folder, the user's folders, and entry points of installed packages.

The user's folders are `environments` in `rl_home()`, those listed in its `environments.txt`, one per line, and those in
the variable HERMES_RL_ENVIRONMENTS, which is read only here.
"""

import os
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from hermes_rl.core.paths import bundled_environments_dir, rl_home
from hermes_rl.environment.loading.import_resolution import installed_module
from hermes_rl.extensions import ENVIRONMENTS
from hermes_rl.orchestration.discovery.types import BrokenFile, EnvironmentSource

VARIABLE = "HERMES_RL_ENVIRONMENTS"


@dataclass(frozen=True, slots=True)
class SearchPath:
    """A folder or file to scan; `only` limits it to one class."""

    path: Path
    source: EnvironmentSource
    only: str | None = None


def all_search_paths() -> tuple[list[SearchPath], list[BrokenFile]]:
    """In order of precedence: the first search path that contains a file determines its source."""
    user, missing = _user_search_paths()
    installed, unresolved = _installed_search_paths()
    bundled = SearchPath(bundled_environments_dir(), EnvironmentSource.BUNDLED)
    return [bundled, *user, *installed], [*missing, *unresolved]


def user_folder() -> Path:
    return rl_home() / "environments"


def folder_list_file() -> Path:
    return rl_home() / "environments.txt"


def _user_search_paths() -> tuple[list[SearchPath], list[BrokenFile]]:
    listed = [(path, f"{folder_list_file()} names it") for path in _listed_folders()]
    listed += [
        (Path(text).expanduser(), f"the variable {VARIABLE} names it")
        for text in os.environ.get(VARIABLE, "").split(os.pathsep)
        if text
    ]
    search_paths = [SearchPath(user_folder(), EnvironmentSource.USER)] if user_folder().is_dir() else []
    broken = []
    for path, origin in listed:
        if path.exists():
            search_paths.append(SearchPath(path, EnvironmentSource.USER))
        else:
            broken.append(
                BrokenFile(path, f"{origin}, but there is no such folder or file; create it, or remove it there")
            )
    return search_paths, broken


def _listed_folders() -> list[Path]:
    try:
        text = folder_list_file().read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    lines = (line.strip() for line in text.splitlines())
    return [rl_home() / Path(line).expanduser() for line in lines if line and not line.startswith("#")]


def _installed_search_paths() -> tuple[list[SearchPath], list[BrokenFile]]:
    search_paths, broken = [], []
    for entry in entry_points(group=ENVIRONMENTS.group):
        file = installed_module(entry.module)
        if file is None:
            owner = entry.dist.name if entry.dist is not None else "a package"
            why = f"{owner} has an entry point for the environment {entry.name!r} here, but the module was not found"
            broken.append(BrokenFile(Path(entry.module), f"{why}; install {owner} again"))
        else:
            path = file.parent if file.name == "__init__.py" and not entry.attr else file
            search_paths.append(SearchPath(path, EnvironmentSource.INSTALLED, entry.attr or None))
    return search_paths, broken
