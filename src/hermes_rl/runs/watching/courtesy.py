"""The 30-minute courtesy: who asks again soon is told the numbers of the last full answer, and all news at once.

Always true: what a run is and what its processes do is never answered from the record; a record that cannot be read or
written means a full answer.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_rl import jsontext
from hermes_rl.runs.places import RunPlaces
from hermes_rl.store.records import write_document

SECONDS = 1800.0
ENDED = ("exited", "killed")


@dataclass(frozen=True, slots=True)
class Told:
    """The last full answer: when, what was notable in it, and its numbers."""

    at: float
    notable: Mapping[str, Any]
    numbers: Mapping[str, Any]


def notable(
    phase: str, stalled: str | None, silent: bool, processes: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """What is told at once when it changes: the phase, a stall, a part that was restarted or ended."""
    return {
        "status": phase,
        "stalled": stalled,
        "supervisor_silent": silent,
        "restarts": {name: part["restarts"] for name, part in processes.items()},
        "ended": {name: part["status"] for name, part in processes.items() if str(part["status"]).startswith(ENDED)},
    }


def wait_left(told: Told | None, now_notable: Mapping[str, Any], now: float) -> float:
    """Seconds for which the record is the answer; 0 when there is news, or the record is old or from the future."""
    if told is None or dict(told.notable) != dict(now_notable) or told.at > now:
        return 0.0
    return max(0.0, told.at + SECONDS - now)


def news(told: Told | None, now_notable: Mapping[str, Any]) -> list[str]:
    """What has changed since the last full answer, in words."""
    if told is None:
        return []
    before, found = told.notable, list[str]()
    if before.get("status") != now_notable["status"]:
        found.append(f"it was {before.get('status')} and is {now_notable['status']}")
    if before.get("stalled") != now_notable["stalled"]:
        found.append("it has stalled" if now_notable["stalled"] else "it gets on again")
    restarts = before.get("restarts") or {}
    for part, count in now_notable["restarts"].items():
        if (more := count - restarts.get(part, 0)) > 0:
            found.append(f"{part} was restarted {'once' if more == 1 else f'{more} times'}")
    for part, how in now_notable["ended"].items():
        if (before.get("ended") or {}).get(part) != how:
            found.append(f"{part} {how}")
    return found


def read_told(places: RunPlaces) -> Told | None:
    try:
        said = jsontext.loads(_path(places).read_bytes())
        told = Told(float(said["at"]), dict(said["notable"]), dict(said["numbers"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return told


def keep_told(
    places: RunPlaces, now_notable: Mapping[str, Any], numbers: Mapping[str, Any], at: float | None = None
) -> None:
    # A full disk keeps nobody from an answer.
    with suppress(OSError):
        moment = time.time() if at is None else at
        write_document(_path(places), {"at": moment, "notable": now_notable, "numbers": numbers})


def _path(places: RunPlaces) -> Path:
    return places.folder / "told.json"
