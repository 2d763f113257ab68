"""One thing to look at, by an id that says nothing of where it lies.

Always true: the same thing has the same id in every viewer, so a link to it goes on working.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from hermes_rl.sinks.following import Followed, Steps
from hermes_rl.store.database.postgres import ADDRESS as POSTGRESQL


class Kind(StrEnum):
    RUN = "run"
    GROUPS = "groups"
    EVALUATION = "evaluation"
    DATABASE = "database"


@dataclass(frozen=True, slots=True)
class Source:
    """Its groups lie in `file` or in `store`; `folder` is that of a run or an evaluation."""

    id: str
    kind: Kind
    name: str
    file: Path | None = None
    store: str | None = None
    folder: Path | None = None
    run_id: str | None = None

    @property
    def identity(self) -> str:
        """What an index of it is named by: the very file, so that another one in its place has another index."""
        if self.store is not None and self.store.startswith(POSTGRESQL):
            return f"store {self.store}"
        path = Path(self.store) if self.store is not None else self.file
        if path is None:
            return f"nothing {self.id}"
        try:
            told = path.stat()
        except OSError:
            return f"missing {path}"
        return f"{'store' if self.store else 'file'} {os.path.realpath(path)} {told.st_dev} {told.st_ino}"

    @property
    def there(self) -> bool:
        """Whether it has groups to read, or may have."""
        if self.store is not None and self.store.startswith(POSTGRESQL):
            return True
        path = Path(self.store) if self.store is not None else self.file
        return path is not None and path.is_file()

    @property
    def updated_at(self) -> float | None:
        moments = []
        for path in (self.file, None if self.store is None else Path(self.store), self._log):
            try:
                seen = path.stat() if path is not None else None
            except OSError:
                continue
            # An empty log is made by those who only read, too.
            if seen is not None and seen.st_size > 0:
                moments.append(seen.st_mtime)
        return max(moments, default=0.0) or None

    @property
    def _log(self) -> Path | None:
        """Where SQLite writes first."""
        return None if self.store is None else Path(f"{self.store}-wal")


@dataclass(frozen=True, slots=True)
class Runs:
    """What is known of training runs, given by whoever starts the viewer: it does not know how runs are kept."""

    listed: Callable[[], list[dict[str, Any]]]
    """Rows with run_id, name, status, environment, step, total_steps and changed_at."""
    folder: Callable[[str], Path]
    status: Callable[[str], Mapping[str, Any]]
    config: Callable[[str], Mapping[str, Any] | None]
    steps: Callable[[Path], Steps] = field(default_factory=lambda: Followed().steps)
    """Of a metrics file, which is asked for every few seconds."""


def no_runs() -> Runs:
    def none(run_id: str) -> Any:
        raise KeyError(run_id)

    return Runs(list, none, none, none)


def groups_source(path: Path) -> Source:
    return Source(_id("groups", str(path.resolve())), Kind.GROUPS, path.name, file=path.resolve())


def evaluation_source(folder: Path, name: str | None = None) -> Source:
    """Of its groups; of the samples where an environment's own evaluate() left nothing else."""
    folder = folder.resolve()
    groups, samples = folder / "groups.jsonl", folder / "samples.jsonl"
    file = groups if groups.exists() or not samples.exists() else samples
    return Source(_id("evaluation", str(folder)), Kind.EVALUATION, name or folder.name, file=file, folder=folder)


def database_source(address: str) -> Source:
    postgres = address.startswith(POSTGRESQL)
    where = address if postgres else str(Path(address).resolve())
    return Source(_id("database", where), Kind.DATABASE, without_password(where), store=where)


def run_source(run_id: str, name: str, folder: Path) -> Source:
    return Source(f"run-{run_id}", Kind.RUN, name, store=str(folder / "trajectories.db"), folder=folder, run_id=run_id)


def without_password(address: str) -> str:
    """A name for an address: the last parts of a path, and nothing that is secret."""
    scheme, mark, rest = address.partition("://")
    if not mark:
        return "/".join(Path(address).parts[-2:]).lstrip("/")
    place = rest.rpartition("@")[2].partition("?")[0]
    return f"{scheme}://{place}"


def _id(kind: str, where: str) -> str:
    return hashlib.sha256(f"{kind} {where}".encode("utf-8", "surrogateescape")).hexdigest()[:12]
