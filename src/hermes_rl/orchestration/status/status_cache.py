"""Repeats the metrics of the last full status for 30 minutes; phase and processes are always fresh.

Always true: phase and processes never come from the last answer; if it cannot be read or written, the answer is full.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.store.records import write_document

THROTTLE_SECONDS = 1800.0
ENDED_PREFIXES = ("exited", "killed")


@dataclass(frozen=True, slots=True)
class LastStatus:
    """The last full answer: its time, its notable state and its metrics."""

    at: float
    notable: Mapping[str, Any]
    numbers: Mapping[str, Any]


def notable(
    phase: str, stalled: str | None, silent: bool, processes: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The state that is reported immediately when it changes: the phase, a stall, a restart or exit of a component."""
    return {
        "status": phase,
        "stalled": stalled,
        "supervisor_silent": silent,
        "restarts": {name: part["restarts"] for name, part in processes.items()},
        "ended": {
            name: part["status"] for name, part in processes.items() if str(part["status"]).startswith(ENDED_PREFIXES)
        },
    }


def remaining_wait(last: LastStatus | None, now_notable: Mapping[str, Any], now: float) -> float:
    """Seconds for which the last answer still holds; 0 after a change, or when it is old or from the future."""
    if last is None or dict(last.notable) != dict(now_notable) or last.at > now:
        return 0.0
    return max(0.0, last.at + THROTTLE_SECONDS - now)


def describe_changes(last: LastStatus | None, now_notable: Mapping[str, Any]) -> list[str]:
    """What has changed since the last full answer."""
    if last is None:
        return []
    before, found = last.notable, list[str]()
    if before.get("status") != now_notable["status"]:
        found.append(f"it was {before.get('status')} and is {now_notable['status']}")
    if before.get("stalled") != now_notable["stalled"]:
        found.append("it has stalled" if now_notable["stalled"] else "it makes progress again")
    restarts = before.get("restarts") or {}
    for part, count in now_notable["restarts"].items():
        if (more := count - restarts.get(part, 0)) > 0:
            found.append(f"{part} was restarted {'once' if more == 1 else f'{more} times'}")
    for part, how in now_notable["ended"].items():
        if (before.get("ended") or {}).get(part) != how:
            found.append(f"{part} {how}")
    return found


def read_last_status(paths: RunPaths) -> LastStatus | None:
    try:
        document = fast_json.loads(_path(paths).read_bytes())
        return LastStatus(float(document["at"]), dict(document["notable"]), dict(document["numbers"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_last_status(
    paths: RunPaths, now_notable: Mapping[str, Any], numbers: Mapping[str, Any], at: float | None = None
) -> None:
    # The status must still be answered on a full disk.
    with suppress(OSError):
        document = {"at": time.time() if at is None else at, "notable": now_notable, "numbers": numbers}
        write_document(_path(paths), document)


def _path(paths: RunPaths) -> Path:
    return paths.folder / "told.json"
