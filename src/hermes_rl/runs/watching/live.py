"""Finding out about a run: its files read, its processes looked for.

Always true: reads only, waits for nobody, and no file of a run makes it raise, whatever stands in it.
"""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hermes_rl.errors import ConfigError
from hermes_rl.processes import Identity
from hermes_rl.runs.places import LONGEST_ID, RunPlaces, names_a_folder, runs_home
from hermes_rl.runs.run_file import RunFile, read_run_file
from hermes_rl.runs.states import PartStanding, RunState, read_state
from hermes_rl.runs.steady import read_steadily
from hermes_rl.runs.watching.standing import Facts, PartFacts

STOP = "stop"


def gather(run_id: str, *, now: float | None = None) -> Facts:
    """What is to be known of a run that is there; ConfigError with the nearest ids for one that is not."""
    return facts_of(known_run(run_id), now=now)


def facts_of(places: RunPlaces, *, now: float | None = None, briefly: bool = False) -> Facts:
    """`briefly` leaves out what the parts of a run that has ended came to: its phase is known without it."""
    state, unreadable = _state(places.state)
    wanted = _document(places.wanted)
    asked = wanted.get("at")
    made = (places.wanted, places.file) if state is None else (places.wanted,)
    lives = state is not None and not state.phase.ended
    parts = state.parts if state and (lives or not briefly) else {}
    return Facts(
        run_id=places.run_id,
        now=time.time() if now is None else now,
        state=state,
        unreadable=unreadable,
        supervisor=bool(state and state.supervisor and state.supervisor.alive()),
        parts={name: _part(places, name, part) for name, part in parts.items()},
        spoke_at=max(state.said_at if state else 0.0, _written_at(places.lock) if lives else 0.0),
        stop_wanted=wanted.get("wanted") == STOP,
        wanted_at=asked if isinstance(asked, int | float) else _written_at(*made),
        asker=_lives(wanted.get("by")),
        coming=_lives(_document(places.coming)),
    )


def known_run(run_id: str) -> RunPlaces:
    """Where it keeps its things; ConfigError for a run that never was."""
    places = RunPlaces(run_id)
    if not any(path.exists() for path in (places.file, places.state)):
        near = nearest(run_id)
        those = f"did you mean {near}?" if near else "there is none yet: `hermes-rl train ENV` starts one."
        raise ConfigError(f"there is no run {run_id!r}; {those} `hermes-rl run list` shows all")
    return places


def nearest(run_id: str) -> str:
    from difflib import get_close_matches

    there = sorted(run_folders())
    return ", ".join(get_close_matches(run_id, there, n=3, cutoff=0.5) or there[-3:])


def run_folders() -> list[str]:
    """The ids of all runs that have a folder. Those of `hermes-rl trainer` alone are no runs in this sense."""
    try:
        return [folder.name for folder in runs_home().iterdir() if is_run(folder)]
    except OSError:
        return []


def is_run(folder: Path) -> bool:
    """Whether it is a run's folder: not a copy under another name, nor what a killed `hermes-rl clean` left."""
    there = (folder / "run.yaml").exists() or (folder / "state.json").exists()
    return there and names_a_folder(folder.name, LONGEST_ID)


def run_file_of(places: RunPlaces) -> RunFile | None:
    try:
        return read_run_file(places.file)
    except (ConfigError, UnicodeError):
        return None


def _state(path: Path) -> tuple[RunState | None, str | None]:
    try:
        state = read_state(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return None, f"{path} cannot be read: {type(error).__name__}: {error}"
    return state, f"{path} cannot be read: it is not whole" if state is None and path.exists() else None


def _part(places: RunPlaces, name: str, part: PartStanding) -> PartFacts:
    keeper, process = (bool(one and one.alive()) for one in (part.keeper, part.process))
    note = {} if process else _document(places.part(name) / "note.json")
    return PartFacts(keeper, process, _noted(places, name, part, note), begun=process or bool(note))


def _noted(places: RunPlaces, name: str, part: PartStanding, note: dict[str, Any]) -> int | None:
    """The exit code that the keeper of this life noted, which the supervisor may not have seen yet."""
    code = note.get("exit_code")
    known = part.process is None or note.get("process") in (None, asdict(part.process))
    if not known or not isinstance(code, int):
        return None
    return code if note.get("life") == _document(places.part(name) / "order.json").get("life") else None


def _lives(told: object) -> bool:
    """Whether the process that a document names is there."""
    return isinstance(told, dict) and {"pid", "began"} == told.keys() and Identity(**told).alive()


def _document(path: Path) -> dict[str, Any]:
    try:
        said: object = read_steadily(path)
    except OSError:
        return {}
    return said if isinstance(said, dict) else {}


def _written_at(*paths: Path) -> float:
    for path in paths:
        try:
            return path.stat().st_mtime
        except OSError:
            continue
    return 0.0
