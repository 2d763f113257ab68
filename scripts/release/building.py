"""The source distribution and the wheel, built so that anybody gets the same bytes from the same commit.

Always true: the wheel is made from the source distribution, not from the checkout; times inside are those of the last
commit; each is built twice, and a difference of one byte is an error.
"""

import hashlib
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEADLINE_S = 600.0


class ReleaseError(Exception):
    """What keeps this from being a release, and what to do."""


@dataclass(frozen=True, slots=True)
class Built:
    sdist: Path
    wheel: Path
    commit: str
    changed: int
    """Files that are not as the commit has them."""
    epoch: int
    """When it was committed."""


def build(work: Path, root: Path = ROOT) -> Built:
    commit, epoch = _git(root, "log", "-1", "--format=%H %ct").split()
    changed = _git(root, "status", "--porcelain").splitlines()
    out = work / "dist"
    sdist = _hatchling("sdist", root, out, epoch)
    with tarfile.open(sdist) as archive:
        archive.extractall(work / "unpacked", filter="data")
    (unpacked,) = (work / "unpacked").iterdir()
    wheel = _hatchling("wheel", unpacked, out, epoch)
    same(sdist, _hatchling("sdist", unpacked, work / "again", epoch))
    same(wheel, _hatchling("wheel", root, work / "again", epoch))
    return Built(sdist, wheel, commit, len(changed), int(epoch))


def same(one: Path, other: Path) -> None:
    if sha256(one) != sha256(other):
        raise ReleaseError(
            f"{one.name} is not the same when it is built again; compare what is in {one} and {other}: a file is in "
            "only one of them, or holds the time or place it was built at"
        )


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _hatchling(target: str, folder: Path, out: Path, epoch: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(out)]
    # Not the command line's own PYTHONPATH: a hook of the checkout must not be needed.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**variables, "SOURCE_DATE_EPOCH": epoch},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if done.returncode:
        raise ReleaseError(f"`{' '.join(command)}` in {folder} failed: {done.stdout}{done.stderr}")
    (built,) = out.glob("*.tar.gz" if target == "sdist" else "*.whl")
    return built


def _git(root: Path, *words: str) -> str:
    try:
        asked = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise ReleaseError(f"a release is built in a git checkout, by the time of its last commit: {error}") from error
    return asked.stdout
