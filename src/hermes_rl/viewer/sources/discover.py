"""Discovers sources: the given targets, or everything in the home of hermes-rl and in the working directory.

Always true: the search is bounded in depth and number; unreadable sources are skipped, unless they are targets.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.paths import rl_home
from hermes_rl.store.database.postgres import URL_PREFIXES as POSTGRESQL
from hermes_rl.viewer.sources.source import (
    RecordSource,
    RunAccess,
    database_source,
    evaluation_source,
    groups_source,
    run_source,
)

MAX_DEPTH = 4
MAX_FILES = 20_000
MAX_SOURCES = 1_000
# What is found without being named: a working directory can be anybody's home.
MAX_LOCAL_FILES = 2_000
MAX_LOCAL_FOLDERS, MAX_LOCAL_PLACES = 100, 300
EVALUATION_FILES = {"groups.jsonl", "metrics.json"}
GROUP_FORMAT, FORMAT_BYTES = b'"format":"hermes-rl/group/', 200
SQLITE_MAGIC = b"SQLite format 3\0"
# JSONL files that hold no groups.
NOT_GROUPS = (".metrics.jsonl", "metrics.jsonl", "lineage.jsonl", "samples.jsonl", "groups.previous.jsonl")


def find_sources(targets: Sequence[str], runs: RunAccess) -> list[RecordSource]:
    """The sources of each target (a run id, file, folder or database URL); without targets, all that is found."""
    found = (
        [source for target in targets for source in resolve_target(target, runs)]
        if targets
        else list(_home_sources(runs))
    )
    return list({source.id: source for source in found}.values())[:MAX_SOURCES]


def resolve_target(target: str, runs: RunAccess) -> list[RecordSource]:
    """The sources of one target; ConfigError when it does not exist."""
    if target.startswith(POSTGRESQL):
        return [database_source(target)]
    path = Path(target)
    if not path.exists():
        known = {row["run_id"]: row for row in runs.listed()}
        if target in known:
            return list(_run_sources(target, str(known[target]["name"]), runs))
        raise ConfigError(
            f"there is no file, folder or run {target!r}; `hermes-rl run list` shows the runs, and "
            "`hermes-rl view` without a target shows everything"
        )
    if path.is_file():
        return [_file_source(path)]
    found = list(_walk(path, runs))
    if not found:
        raise ConfigError(
            f"{path} contains no groups (*.jsonl), evaluation or trajectory database; pass a file or folder that does, "
            "or the id of a run (`hermes-rl run list` shows them)"
        )
    return found


def _file_source(path: Path) -> RecordSource:
    if _is_store(path):
        return database_source(str(path))
    if path.name in {"metrics.json", "samples.jsonl", "groups.jsonl"} and (path.parent / "metrics.json").exists():
        return evaluation_source(path.parent)
    return groups_source(path)


def _home_sources(runs: RunAccess) -> Iterator[RecordSource]:
    for row in runs.listed():
        yield from _run_sources(str(row["run_id"]), str(row["name"]), runs)
    evaluations = _folders(rl_home() / "evals")
    yield from (evaluation_source(folder) for folder in evaluations if _is_evaluation(folder))
    database = rl_home() / "trajectories.db"
    if database.exists():
        yield database_source(str(database))
    yield from _local_sources(Path.cwd())


def _local_sources(folder: Path) -> Iterator[RecordSource]:
    """Evaluations and files of groups in the working directory, where `evaluate` and `process` may write them."""
    here = [folder, *_visible_folders(folder)]
    nested = [inner for outer in here[1:] for inner in _visible_folders(outer)]
    seen = 0
    for place in (here + nested)[:MAX_LOCAL_PLACES]:
        try:
            files = sorted(entry.name for entry in os.scandir(place) if entry.is_file())
        except OSError:
            continue
        seen += len(files)
        if seen > MAX_LOCAL_FILES:
            return
        evaluation = EVALUATION_FILES & set(files) and _is_evaluation(place)
        if evaluation:
            yield evaluation_source(place)
            continue
        names = [name for name in files if name.endswith(".jsonl") and not name.endswith(NOT_GROUPS)]
        yield from (groups_source(place / name) for name in names if _holds_groups(place / name))


def _visible_folders(folder: Path) -> list[Path]:
    skipped = ("node_modules", "__pycache__", "site-packages")
    return [path for path in _folders(folder) if not path.name.startswith(".") and path.name not in skipped][
        :MAX_LOCAL_FOLDERS
    ]


def _holds_groups(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return GROUP_FORMAT in file.read(FORMAT_BYTES)
    except OSError:
        return False


def _run_sources(run_id: str, name: str, runs: RunAccess) -> Iterator[RecordSource]:
    folder = runs.folder(run_id)
    yield run_source(run_id, name, folder)
    for part in _folders(folder / "parts"):
        for evaluation in (*_folders(part / "serve" / "evals"), *_folders(part / "evals")):
            if _is_evaluation(evaluation):
                yield evaluation_source(evaluation, f"{name} · {evaluation.name}")


def _walk(folder: Path, runs: RunAccess) -> Iterator[RecordSource]:
    known = {runs.folder(str(row["run_id"])).resolve(): row for row in runs.listed()}
    seen = 0
    for directory, inner, files in os.walk(folder):
        here = Path(directory)
        inner[:] = sorted(name for name in inner if not name.startswith(".") and name != "node_modules")
        if len(here.relative_to(folder).parts) >= MAX_DEPTH:
            inner.clear()
        seen += len(files)
        if seen > MAX_FILES:
            return
        if row := known.get(here.resolve()):
            inner.clear()
            yield from _run_sources(str(row["run_id"]), str(row["name"]), runs)
            continue
        evaluation = _is_evaluation(here)
        if evaluation:
            yield evaluation_source(here)
        yield from _file_sources(here, sorted(files), evaluation=evaluation)


def _file_sources(folder: Path, names: list[str], *, evaluation: bool) -> Iterator[RecordSource]:
    for name in names:
        path = folder / name
        if name.endswith(".jsonl") and not name.endswith(NOT_GROUPS) and not (evaluation and name == "groups.jsonl"):
            yield groups_source(path)
        elif name.endswith((".db", ".sqlite")) and _is_store(path):
            yield database_source(str(path))


def _is_evaluation(folder: Path) -> bool:
    return (folder / "groups.jsonl").exists() or (
        (folder / "metrics.json").exists() and (folder / "samples.jsonl").exists()
    )


def _is_store(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    except OSError:
        return False


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: path.name, reverse=True)
    except OSError:
        return []
