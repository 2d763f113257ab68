"""The list of all runs, from the store's records and the run folders, each with its actual status.

Always true: no run is missing because its record is missing, unreadable or locked; for a run with a folder, its files
take precedence over the record.
"""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.secrets import redact_value
from hermes_rl.orchestration.run_file import RunFile
from hermes_rl.orchestration.run_paths import RunPaths, runs_database
from hermes_rl.orchestration.status.derive import LivePhase, StatusFacts, derive_status
from hermes_rl.orchestration.status.inspect import find_run_file, read_facts, run_folders
from hermes_rl.orchestration.status.metrics import TRAINER_FILE
from hermes_rl.orchestration.status.redaction import known_secrets
from hermes_rl.store.database.errors import StoreError
from hermes_rl.store.database.store import open_store
from hermes_rl.store.database.views import Run

# Longer than the last line of a metrics file.
TAIL_BYTES = 8 * 1024
FOLDER_GONE = "its folder is gone"


def list_runs() -> list[dict[str, Any]]:
    """Newest first."""
    recorded = {run.id: run for run in recorded_runs()}
    folders = set(run_folders())
    unrecorded = {run_id: find_run_file(RunPaths(run_id)) for run_id in folders - set(recorded)}
    rows = [_recorded_row(run, folders) for run in recorded.values()]
    rows += [_folder_row(run_id, file) for run_id, file in unrecorded.items()]
    rows.sort(key=lambda row: (row["started_at"] or 0.0, row["run_id"]), reverse=True)
    keys = {str(name) for run in recorded.values() for name in run.settings.get("keys") or ()}
    keys |= {name for file in unrecorded.values() if file for name in file.keys}
    redacted: list[dict[str, Any]] = redact_value(rows, known_secrets(keys))
    return redacted


def recorded_runs() -> list[Run]:
    """Empty when there are no records or they cannot be read; the folders have the same runs."""
    path = runs_database()
    if not path.exists():
        return []
    try:
        # In a thread, since the caller may have an event loop running.
        with ThreadPoolExecutor(1, "hermes-rl-records") as thread:
            return thread.submit(asyncio.run, _read(path)).result()
    except (StoreError, OSError):
        return []


async def _read(path: Path) -> list[Run]:
    async with open_store(path) as store:
        return await store.runs()


def _recorded_row(run: Run, folders: set[str]) -> dict[str, Any]:
    row = {"run_id": run.id, "name": run.name, **_settings_fields(run.settings), "started_at": run.started_at}
    if run.id in folders:
        paths = RunPaths(run.id)
        return row | _live_fields(paths, read_facts(paths, skip_ended_components=True))
    phase = run.state if run.state in {*LivePhase} and LivePhase(run.state).ended else LivePhase.INTERRUPTED
    return row | {"status": str(phase), "reason": FOLDER_GONE, "step": None, "changed_at": run.changed_at}


def _folder_row(run_id: str, file: RunFile | None) -> dict[str, Any]:
    paths = RunPaths(run_id)
    facts = read_facts(paths, skip_ended_components=True)
    started = facts.state.started_at if facts.state and facts.state.started_at else facts.requested_at
    row = {"run_id": run_id, "name": file.name if file else run_id, "started_at": started}
    return row | _settings_fields(file.model_dump(mode="json") if file else {}) | _live_fields(paths, facts)


def _live_fields(paths: RunPaths, facts: StatusFacts) -> dict[str, Any]:
    derived = derive_status(facts)
    return {
        "status": str(derived.phase),
        "reason": derived.reason,
        "step": last_step(paths.folder / TRAINER_FILE),
        "changed_at": facts.state.changed_at if facts.state else facts.requested_at,
    }


def _settings_fields(settings: Mapping[str, Any]) -> dict[str, Any]:
    entries = settings.get("environments") or []
    names = [str(entry.get("name") if isinstance(entry, Mapping) else entry) for entry in entries]
    tinker = settings.get("tinker") or {}
    return {
        "environment": ", ".join(names) or None,
        "environments": names,
        "preset": settings.get("preset"),
        "wandb_run_name": tinker.get("wandb_name"),
        "total_steps": tinker.get("total_steps"),
    }


def last_step(path: Path) -> int | None:
    """The step of the last complete line of a metrics file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    # Text after the last line feed is incomplete.
    for line in reversed(lines[:-1]):
        try:
            return int(fast_json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            continue
    return None
