"""The last lines of a component's log, including rotated files.

Always true: at most MAX_BYTES are read, however large the log is; keys are redacted.
"""

from pathlib import Path

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.secrets import redact_value
from hermes_rl.orchestration.run_paths import RunPaths, logs_home
from hermes_rl.orchestration.status.status import SUPERVISOR, inspect_run

MAX_BYTES = 4 * 2**20
CHUNK = 64 * 1024


def log_lines(run_id: str, part: str, lines: int = 50) -> str:
    """ConfigError with the available names for an unknown component."""
    if lines < 1:
        raise ConfigError(f"cannot show {lines} lines; ask for 1 or more")
    run = inspect_run(run_id)
    available = log_parts(run.paths, run.parts)
    if part not in available:
        raise ConfigError(f"run {run_id} has no part {part!r}; it has {', '.join(available)}")
    path = run.paths.log(part)
    found: list[bytes] = []
    room = MAX_BYTES
    for file in (path, *rotated_logs(path)):
        if len(found) >= lines or room <= 0:
            break
        older, read = _tail(file, lines - len(found), room)
        found = older + found
        room -= read
    text = b"\n".join(found).decode(errors="replace")
    redacted: str = redact_value(text, run.secrets())
    return redacted


def log_parts(paths: RunPaths, parts: list[str]) -> list[str]:
    """The names of the components that have or will have a log."""
    ending = f"_{paths.run_id}.log"
    others = sorted(path.name.removesuffix(ending) for path in logs_home().glob(f"*{ending}"))
    return list(dict.fromkeys([*parts, SUPERVISOR, *others]))


def rotated_logs(path: Path) -> list[Path]:
    """The rotated files of a log, newest first."""
    older = [rotated_log for rotated_log in path.parent.glob(f"{path.name}.*") if rotated_log.suffix[1:].isdigit()]
    return sorted(older, key=lambda rotated_log: int(rotated_log.suffix[1:]))


def _tail(path: Path, lines: int, max_bytes: int) -> tuple[list[bytes], int]:
    """The last lines of a file, and the number of bytes read."""
    try:
        with path.open("rb") as file:
            end = at = file.seek(0, 2)
            data = b""
            while at > 0 and end - at < max_bytes and data.rstrip(b"\n").count(b"\n") < lines:
                before, at = at, max(0, at - CHUNK)
                file.seek(at)
                data = file.read(before - at) + data
            return data.rstrip(b"\n").split(b"\n")[-lines:] if data else [], end - at
    except OSError:
        return [], 0
