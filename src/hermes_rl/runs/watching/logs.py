"""The end of a part's log, the rotated one before it too.

Always true: never more than LARGEST bytes are read, however large a log is; keys are hidden.
"""

from pathlib import Path

from hermes_rl.errors import ConfigError
from hermes_rl.runs.places import RunPlaces, logs_home
from hermes_rl.runs.watching.hiding import hidden
from hermes_rl.runs.watching.status import SUPERVISOR, watched

LARGEST = 4 * 2**20
CHUNK = 64 * 1024


def log_lines(run_id: str, part: str, lines: int = 50) -> str:
    """Its last lines; ConfigError for a part that the run does not have, with those it has."""
    if lines < 1:
        raise ConfigError(f"{lines} lines cannot be shown; ask for 1 or more")
    run = watched(run_id)
    there = log_parts(run.places, run.parts)
    if part not in there:
        raise ConfigError(f"the run {run_id} has no part {part!r}; it has {', '.join(there)}")
    path = run.places.log(part)
    found: list[bytes] = []
    room = LARGEST
    for file in (path, *rotated(path)):
        if len(found) >= lines or room <= 0:
            break
        older, read = _tail(file, lines - len(found), room)
        found = older + found
        room -= read
    text = b"\n".join(found).decode(errors="replace")
    shown: str = hidden(text, run.secrets())
    return shown


def log_parts(places: RunPlaces, parts: list[str]) -> list[str]:
    """Whose logs a run has or will have."""
    ending = f"_{places.run_id}.log"
    others = sorted(path.name.removesuffix(ending) for path in logs_home().glob(f"*{ending}"))
    return list(dict.fromkeys([*parts, SUPERVISOR, *others]))


def rotated(path: Path) -> list[Path]:
    """What a log became when it was full, the newest first."""
    older = [one for one in path.parent.glob(f"{path.name}.*") if one.suffix[1:].isdigit()]
    return sorted(older, key=lambda one: int(one.suffix[1:]))


def _tail(path: Path, lines: int, most: int) -> tuple[list[bytes], int]:
    """The last lines of a file, and how many bytes were read for them."""
    try:
        with path.open("rb") as file:
            end = at = file.seek(0, 2)
            data = b""
            while at > 0 and end - at < most and data.rstrip(b"\n").count(b"\n") < lines:
                before, at = at, max(0, at - CHUNK)
                file.seek(at)
                data = file.read(before - at) + data
            return data.rstrip(b"\n").split(b"\n")[-lines:] if data else [], end - at
    except OSError:
        return [], 0
