"""Finding what can be looked at: what was named, or all that the home of hermes-rl holds.

Always true: a search is bounded in depth and number; what cannot be read is left out, but for what was named.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hermes_rl.errors import ConfigError
from hermes_rl.home import rl_home
from hermes_rl.store.database.postgres import ADDRESS as POSTGRESQL
from hermes_rl.viewer.sources.source import (
    Runs,
    Source,
    database_source,
    evaluation_source,
    groups_source,
    run_source,
)

DEPTH = 4
MOST_FILES = 20_000
MOST_SOURCES = 1_000
SQLITE = b"SQLite format 3\0"
# Beside the groups, and no groups themselves.
OTHER_LINES = (".metrics.jsonl", "metrics.jsonl", "lineage.jsonl", "samples.jsonl", "groups.previous.jsonl")


def find_sources(targets: Sequence[str], runs: Runs) -> list[Source]:
    """Of each target, which is the id of a run, a file, a folder or an address; without any, of the home."""
    found = [source for target in targets for source in sources_of(target, runs)] if targets else list(_home(runs))
    return list({source.id: source for source in found}.values())[:MOST_SOURCES]


def sources_of(target: str, runs: Runs) -> list[Source]:
    """ConfigError when there is nothing of this name."""
    if target.startswith(POSTGRESQL):
        return [database_source(target)]
    path = Path(target)
    if not path.exists():
        known = {row["run_id"]: row for row in runs.listed()}
        if target in known:
            return list(_run(target, str(known[target]["name"]), runs))
        raise ConfigError(
            f"there is no file, folder or run {target!r}; `hermes-rl run list` shows the runs, and "
            "`hermes-rl view` without a name shows all that is here"
        )
    if path.is_file():
        return [_of_file(path)]
    found = list(_walk(path, runs))
    if not found:
        raise ConfigError(
            f"{path} holds no groups (*.jsonl), no evaluation and no trajectory database; name a file or a folder that "
            "has some, or a run by its id (`hermes-rl run list` shows them)"
        )
    return found


def _of_file(path: Path) -> Source:
    if _is_store(path):
        return database_source(str(path))
    if path.name in {"metrics.json", "samples.jsonl", "groups.jsonl"} and (path.parent / "metrics.json").exists():
        return evaluation_source(path.parent)
    return groups_source(path)


def _home(runs: Runs) -> Iterator[Source]:
    for row in runs.listed():
        yield from _run(str(row["run_id"]), str(row["name"]), runs)
    evaluations = _folders(rl_home() / "evals")
    yield from (evaluation_source(folder) for folder in evaluations if _is_evaluation(folder))
    database = rl_home() / "trajectories.db"
    if database.exists():
        yield database_source(str(database))


def _run(run_id: str, name: str, runs: Runs) -> Iterator[Source]:
    folder = runs.folder(run_id)
    yield run_source(run_id, name, folder)
    for part in _folders(folder / "parts"):
        for evaluation in _folders(part / "evals"):
            if _is_evaluation(evaluation):
                yield evaluation_source(evaluation, f"{name} · {evaluation.name}")


def _walk(folder: Path, runs: Runs) -> Iterator[Source]:
    known = {runs.folder(str(row["run_id"])).resolve(): row for row in runs.listed()}
    seen = 0
    for place, inner, files in os.walk(folder):
        here = Path(place)
        inner[:] = sorted(name for name in inner if not name.startswith(".") and name != "node_modules")
        if len(here.relative_to(folder).parts) >= DEPTH:
            inner.clear()
        seen += len(files)
        if seen > MOST_FILES:
            return
        if row := known.get(here.resolve()):
            inner.clear()
            yield from _run(str(row["run_id"]), str(row["name"]), runs)
            continue
        evaluation = _is_evaluation(here)
        if evaluation:
            yield evaluation_source(here)
        yield from _files(here, sorted(files), evaluation=evaluation)


def _files(folder: Path, names: list[str], *, evaluation: bool) -> Iterator[Source]:
    for name in names:
        path = folder / name
        if name.endswith(".jsonl") and not name.endswith(OTHER_LINES) and not (evaluation and name == "groups.jsonl"):
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
            return file.read(len(SQLITE)) == SQLITE
    except OSError:
        return False


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted((one for one in folder.iterdir() if one.is_dir()), key=lambda one: one.name, reverse=True)
    except OSError:
        return []
