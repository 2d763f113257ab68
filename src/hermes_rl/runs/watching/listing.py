"""All runs: those of the records, those that only have a folder, each with what it really is.

Always true: no run is left out because a record is missing, unreadable or held by another process; of a run that has a
folder its own word counts, not that of the record.
"""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hermes_rl import jsontext
from hermes_rl.runs.places import RunPlaces, records
from hermes_rl.runs.run_file import RunFile
from hermes_rl.runs.watching.hiding import hidden, known_secrets
from hermes_rl.runs.watching.live import facts_of, run_file_of, run_folders
from hermes_rl.runs.watching.measured import TRAINER_FILE
from hermes_rl.runs.watching.standing import Facts, LivePhase, standing_of
from hermes_rl.store.database.errors import StoreError
from hermes_rl.store.database.listing import Run
from hermes_rl.store.database.store import open_store

# The last line of a metrics file is shorter.
TAIL = 8 * 1024
GONE = "its folder is gone"


def list_runs() -> list[dict[str, Any]]:
    """The newest first."""
    recorded = {run.id: run for run in recorded_runs()}
    folders = set(run_folders())
    unrecorded = {run_id: run_file_of(RunPlaces(run_id)) for run_id in folders - set(recorded)}
    rows = [_row(run, folders) for run in recorded.values()]
    rows += [_row_of_folder(run_id, file) for run_id, file in unrecorded.items()]
    rows.sort(key=lambda row: (row["started_at"] or 0.0, row["run_id"]), reverse=True)
    keys = {str(name) for run in recorded.values() for name in run.settings.get("keys") or ()}
    keys |= {name for file in unrecorded.values() if file for name in file.keys}
    shown: list[dict[str, Any]] = hidden(rows, known_secrets(keys))
    return shown


def recorded_runs() -> list[Run]:
    """None when there are no records yet, or they cannot be read: folders tell the same."""
    path = records()
    if not path.exists():
        return []
    try:
        # Callers may have an event loop of their own running.
        with ThreadPoolExecutor(1, "hermes-rl-records") as thread:
            return thread.submit(asyncio.run, _read(path)).result()
    except (StoreError, OSError):
        return []


async def _read(path: Path) -> list[Run]:
    async with open_store(path) as store:
        return await store.runs()


def _row(run: Run, folders: set[str]) -> dict[str, Any]:
    row = {"run_id": run.id, "name": run.name, **_described(run.settings), "started_at": run.started_at}
    if run.id in folders:
        places = RunPlaces(run.id)
        return row | _live(places, facts_of(places, briefly=True))
    phase = run.state if run.state in {*LivePhase} and LivePhase(run.state).ended else LivePhase.INTERRUPTED
    return row | {"status": str(phase), "reason": GONE, "step": None, "changed_at": run.changed_at}


def _row_of_folder(run_id: str, file: RunFile | None) -> dict[str, Any]:
    places = RunPlaces(run_id)
    facts = facts_of(places, briefly=True)
    started = facts.state.started_at if facts.state and facts.state.started_at else facts.wanted_at
    row = {"run_id": run_id, "name": file.name if file else run_id, "started_at": started}
    return row | _described(file.model_dump(mode="json") if file else {}) | _live(places, facts)


def _live(places: RunPlaces, facts: Facts) -> dict[str, Any]:
    standing = standing_of(facts)
    return {
        "status": str(standing.phase),
        "reason": standing.reason,
        "step": last_step(places.folder / TRAINER_FILE),
        "changed_at": facts.state.changed_at if facts.state else facts.wanted_at,
    }


def _described(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a record says of the run's beginning, as far as it says it."""
    entries = settings.get("environments") or []
    names = [str(one.get("name") if isinstance(one, Mapping) else one) for one in entries]
    tinker = settings.get("tinker") or {}
    return {
        "environment": ", ".join(names) or None,
        "environments": names,
        "preset": settings.get("preset"),
        "wandb_run_name": tinker.get("wandb_name"),
        "total_steps": tinker.get("total_steps"),
    }


def last_step(path: Path) -> int | None:
    """Of the last whole line of a metrics file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    # What follows the last line feed is torn.
    for line in reversed(lines[:-1]):
        try:
            return int(jsontext.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            continue
    return None
