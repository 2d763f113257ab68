"""Files of this machine that no sandbox shows: our package with the bundled answers, our home, and a spec's `hidden`.

Always true: a hidden file or folder is covered in every mount that would show it. A mount of the hidden folder itself,
or of a folder inside it, stays: `folders` of a spec names those on purpose.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path, PurePosixPath

from hermes_rl.core.paths import bundled_environments_dir, hermes_home, rl_home

# How many entries of a folder are checked for links that lead out of it.
MAX_ENTRIES = 5000


@dataclass(frozen=True, slots=True)
class Cover:
    """A path inside the sandbox to cover: with an empty read-only folder, or as an unreadable file."""

    target: str
    folder: bool


def hidden_paths(hidden: Iterable[Path] = ()) -> list[str]:
    """The real paths of what no sandbox shows: our package, the runs and keys in our home, and these."""
    ours = (*package_paths(), rl_home(), hermes_home() / ".env")
    return sorted({os.path.realpath(path) for path in (*ours, *hidden)})


def covers(source: Path, target: str, hidden: Sequence[str], *, enterable: bool = False) -> list[Cover]:
    """What to cover after mounting `source` of this machine at `target`. `hidden` comes from `hidden_paths`.

    `enterable` leaves out what other users cannot enter: a sandbox under its own uid cannot read it, nor cover it.
    """
    prefix = os.path.realpath(source).rstrip("/") + "/"
    covered: list[str] = []
    for path in hidden:
        inside = path.startswith(prefix) and not any(path.startswith(f"{folder}/") for folder in covered)
        if inside and os.path.lexists(path) and (not enterable or _can_be_entered(Path(path), Path(prefix))):
            covered.append(path)
    return [Cover(str(PurePosixPath(target, path.removeprefix(prefix))), Path(path).is_dir()) for path in covered]


def with_links(folder: Path) -> Iterator[Path]:
    """The folder, and the targets of links in it: an installer may keep the files themselves elsewhere."""
    yield folder
    for path in islice(folder.rglob("*"), MAX_ENTRIES):
        if path.is_symlink():
            yield path.resolve()


@cache
def package_paths() -> tuple[Path, ...]:
    """Where our package and the bundled environments are; in an editable install, the whole checkout."""
    # Both: the folder may be a link, or only its files may be.
    packages = {Path(__file__).resolve().parents[1], Path(__file__).parent.resolve().parent}
    checkouts = {package.parents[1] for package in packages if (package.parents[1] / "pyproject.toml").is_file()}
    return tuple(sorted({*packages, *checkouts, *with_links(bundled_environments_dir())}))


def _can_be_entered(path: Path, root: Path) -> bool:
    parents = [parent for parent in path.parents if parent.is_relative_to(root)]
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in parents)
