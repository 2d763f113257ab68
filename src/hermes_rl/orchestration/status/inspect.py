"""Reads a run's files and looks for its processes.

Always true: read-only, never blocks, and no content of a run's files makes it raise.
"""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.process_identity import ProcessIdentity
from hermes_rl.orchestration.atomic_json import read_atomic_json
from hermes_rl.orchestration.run_file import RunFile, read_run_file
from hermes_rl.orchestration.run_paths import MAX_ID_LENGTH, RunPaths, is_folder_name, runs_home
from hermes_rl.orchestration.run_state import ComponentStatus, RunState, read_state
from hermes_rl.orchestration.status.derive import ComponentFacts, StatusFacts

STOP = "stop"


def gather_facts(run_id: str, *, now: float | None = None) -> StatusFacts:
    """ConfigError with similar ids for an unknown run."""
    return read_facts(existing_run(run_id), now=now)


def read_facts(paths: RunPaths, *, now: float | None = None, skip_ended_components: bool = False) -> StatusFacts:
    """`skip_ended_components` skips the components of an ended run, since its phase does not depend on them."""
    state, unreadable = _read_state(paths.state)
    wanted = _read_object(paths.wanted)
    at = wanted.get("at")
    fallback_files = (paths.wanted, paths.file) if state is None else (paths.wanted,)
    is_active = state is not None and not state.phase.ended
    parts = state.parts if state and (is_active or not skip_ended_components) else {}
    return StatusFacts(
        run_id=paths.run_id,
        now=time.time() if now is None else now,
        state=state,
        unreadable=unreadable,
        supervisor=bool(state and state.supervisor and state.supervisor.alive()),
        parts={name: _component_facts(paths, name, part) for name, part in parts.items()},
        supervisor_seen_at=max(state.said_at if state else 0.0, _mtime(paths.lock) if is_active else 0.0),
        stop_wanted=wanted.get("wanted") == STOP,
        requested_at=at if isinstance(at, int | float) else _mtime(*fallback_files),
        requester_alive=_is_alive(wanted.get("by")),
        supervisor_starting=_is_alive(_read_object(paths.coming)),
    )


def existing_run(run_id: str) -> RunPaths:
    """The paths of a run; ConfigError with similar ids for an unknown one."""
    paths = RunPaths(run_id)
    if not any(path.exists() for path in (paths.file, paths.state)):
        similar = similar_runs(run_id)
        hint = f"did you mean {similar}?" if similar else "there are no runs yet: `hermes-rl train ENV` starts one."
        raise ConfigError(f"there is no run {run_id!r}; {hint} `hermes-rl run list` shows all")
    return paths


def similar_runs(run_id: str) -> str:
    from difflib import get_close_matches

    run_ids = sorted(run_folders())
    return ", ".join(get_close_matches(run_id, run_ids, n=3, cutoff=0.5) or run_ids[-3:])


def run_folders() -> list[str]:
    """The ids of all runs with a folder, without those of a standalone `hermes-rl trainer`."""
    try:
        return [folder.name for folder in runs_home().iterdir() if is_run(folder)]
    except OSError:
        return []


def is_run(folder: Path) -> bool:
    """Whether it is a run's folder, and not what a killed `hermes-rl clean` left."""
    has_files = (folder / "run.yaml").exists() or (folder / "state.json").exists()
    return has_files and is_folder_name(folder.name, MAX_ID_LENGTH)


def find_run_file(paths: RunPaths) -> RunFile | None:
    try:
        return read_run_file(paths.file)
    except (ConfigError, UnicodeError):
        return None


def _read_state(path: Path) -> tuple[RunState | None, str | None]:
    try:
        state = read_state(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return None, f"{path} cannot be read: {type(error).__name__}: {error}"
    return state, f"{path} cannot be read: it is incomplete" if state is None and path.exists() else None


def _component_facts(paths: RunPaths, name: str, part: ComponentStatus) -> ComponentFacts:
    shim, process = (bool(identity and identity.alive()) for identity in (part.keeper, part.process))
    note = {} if process else _read_object(paths.part(name) / "note.json")
    return ComponentFacts(shim, process, _noted_exit_code(paths, name, part, note), started=process or bool(note))


def _noted_exit_code(paths: RunPaths, name: str, part: ComponentStatus, note: dict[str, Any]) -> int | None:
    """The exit code that the shim of this launch noted, which the supervisor may not have seen yet."""
    code = note.get("exit_code")
    known = part.process is None or note.get("process") in (None, asdict(part.process))
    if not known or not isinstance(code, int):
        return None
    return code if note.get("life") == _read_object(paths.part(name) / "order.json").get("life") else None


def _is_alive(identity: object) -> bool:
    return isinstance(identity, dict) and {"pid", "began"} == identity.keys() and ProcessIdentity(**identity).alive()


def _read_object(path: Path) -> dict[str, Any]:
    try:
        document: object = read_atomic_json(path)
    except OSError:
        return {}
    return document if isinstance(document, dict) else {}


def _mtime(*paths: Path) -> float:
    for path in paths:
        try:
            return path.stat().st_mtime
        except OSError:
            continue
    return 0.0
