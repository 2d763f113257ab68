"""A source of records, with an id that does not reveal its location.

Always true: a source has the same id in every viewer, so links keep working.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from hermes_rl.core.group_means import group_mean
from hermes_rl.sinks.tail import MetricRows, MetricsTail
from hermes_rl.store.database.postgres import URL_PREFIXES as POSTGRESQL


class SourceKind(StrEnum):
    RUN = "run"
    GROUPS = "groups"
    EVALUATION = "evaluation"
    DATABASE = "database"


@dataclass(frozen=True, slots=True)
class RecordSource:
    """Groups in a `file` or a `store`; `folder` is that of a run or an evaluation."""

    id: str
    kind: SourceKind
    name: str
    file: Path | None = None
    store: str | None = None
    folder: Path | None = None
    run_id: str | None = None

    @property
    def identity(self) -> str:
        """The name of its index: the inode, so that another file at the same path gets another index."""
        if self.store is not None and self.store.startswith(POSTGRESQL):
            return f"store {self.store}"
        path = Path(self.store) if self.store is not None else self.file
        if path is None:
            return f"nothing {self.id}"
        try:
            stat = path.stat()
        except OSError:
            return f"missing {path}"
        return f"{'store' if self.store else 'file'} {os.path.realpath(path)} {stat.st_dev} {stat.st_ino}"

    @property
    def available(self) -> bool:
        """Whether it may have groups to read."""
        if self.store is not None and self.store.startswith(POSTGRESQL):
            return True
        path = Path(self.store) if self.store is not None else self.file
        return path is not None and path.is_file()

    @property
    def updated_at(self) -> float | None:
        times = []
        for path in (self.file, None if self.store is None else Path(self.store), self._log):
            try:
                stat = path.stat() if path is not None else None
            except OSError:
                continue
            # Readers create an empty log, too.
            if stat is not None and stat.st_size > 0:
                times.append(stat.st_mtime)
        return max(times, default=0.0) or None

    @property
    def _log(self) -> Path | None:
        """SQLite's write-ahead log, which changes first."""
        return None if self.store is None else Path(f"{self.store}-wal")


class Command(NamedTuple):
    """A command line to type, and what it does."""

    what: str
    line: str


class AdvantageRule(NamedTuple):
    """How scores of a group become advantages, in words and as a function; None where it cannot be repeated here."""

    text: str
    compute: Callable[[Sequence[float]], Sequence[float]] | None


def _deviation(scores: Sequence[float]) -> list[float]:
    mean = group_mean(scores) or 0.0
    return [score - mean for score in scores]


DEVIATION = AdvantageRule("score minus the mean of the group", _deviation)


@dataclass(frozen=True, slots=True)
class RunAccess:
    """Access to training runs, passed in by the caller: the viewer does not know how runs are stored."""

    listed: Callable[[], list[dict[str, Any]]]
    """Rows with run_id, name, status, environment, step, total_steps and changed_at."""
    folder: Callable[[str], Path]
    status: Callable[[str], Mapping[str, Any]]
    config: Callable[[str], Mapping[str, Any] | None]
    steps: Callable[[Path], MetricRows] = field(default_factory=lambda: MetricsTail().steps)
    """Reads a metrics file; called every few seconds."""
    batch_steps: Callable[[str], Mapping[int, int]] = lambda _: {}
    """The training step of each batch that the weights were trained on."""
    advantage: Callable[[str], AdvantageRule] = lambda _: DEVIATION
    """How the run turns the scores of a group into advantages."""
    logs: Callable[[str], list[str]] = lambda _: []
    """The components of a run that have a log."""
    log: Callable[[str, str, int], str] = lambda _run_id, _part, _lines: ""
    """The last lines of a component's log, without keys."""
    commands: Callable[[str], list[Command]] = lambda _: []
    """What to do next with a run."""


def no_runs() -> RunAccess:
    def none(run_id: str) -> Any:
        raise KeyError(run_id)

    return RunAccess(list, none, none, none)


def groups_source(path: Path) -> RecordSource:
    return RecordSource(_id("groups", str(path.resolve())), SourceKind.GROUPS, path.name, file=path.resolve())


def evaluation_source(folder: Path, name: str | None = None) -> RecordSource:
    """The groups of an evaluation, or its samples when a custom evaluate() wrote nothing else."""
    folder = folder.resolve()
    groups, samples = folder / "groups.jsonl", folder / "samples.jsonl"
    file = groups if groups.exists() or not samples.exists() else samples
    return RecordSource(
        _id("evaluation", str(folder)), SourceKind.EVALUATION, name or folder.name, file=file, folder=folder
    )


def database_source(address: str) -> RecordSource:
    postgres = address.startswith(POSTGRESQL)
    location = address if postgres else str(Path(address).resolve())
    return RecordSource(_id("database", location), SourceKind.DATABASE, display_name(location), store=location)


def run_source(run_id: str, name: str, folder: Path) -> RecordSource:
    return RecordSource(
        f"run-{run_id}", SourceKind.RUN, name, store=str(folder / "trajectories.db"), folder=folder, run_id=run_id
    )


def display_name(address: str) -> str:
    """The last parts of a path, or a URL without credentials and parameters."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return "/".join(Path(address).parts[-2:]).lstrip("/")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"


def _id(kind: str, location: str) -> str:
    return hashlib.sha256(f"{kind} {location}".encode("utf-8", "surrogateescape")).hexdigest()[:12]
