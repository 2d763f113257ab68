"""Printing and following the logs of a run's components."""

import time
from pathlib import Path

from hermes_rl.console.output import echo
from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.run_paths import RunPaths

POLL_SECONDS = 0.3


def logged_components(run_id: str) -> list[str]:
    from hermes_rl.orchestration.status.logs import log_parts
    from hermes_rl.orchestration.status.status import status

    places = RunPaths(run_id)
    return [part for part in log_parts(places, list(status(run_id)["processes"])) if places.log(part).exists()]


def select_components(run_id: str, part: str | None) -> list[str]:
    """All components with a log, or the selected one."""
    existing = logged_components(run_id)
    if part is None:
        if not existing:
            raise ConfigError(f"run {run_id} has no logs yet; check its state with `hermes-rl run status {run_id}`")
        return existing
    if part not in existing:
        raise ConfigError(f"run {run_id} has no log of {part!r}; it has {', '.join(existing) or 'none yet'}")
    return [part]


def print_tail(run_id: str, parts: list[str], lines: int) -> None:
    from hermes_rl.orchestration.status.logs import log_lines

    for part in parts:
        if len(parts) > 1:
            echo(f"--- {part}: {RunPaths(run_id).log(part)}", bold=True)
        echo(log_lines(run_id, part, lines).rstrip("\n"))


def follow_logs(run_id: str, parts: list[str]) -> None:
    """Print new lines until the run ends, prefixed by their component if there are several."""
    from hermes_rl.orchestration.status.status import status

    tails = {part: LogTail(RunPaths(run_id).log(part)) for part in parts}
    while True:
        ended = status(run_id)["ended"]
        for part, tail in tails.items():
            for line in tail.lines():
                echo(f"{part}: {line}" if len(parts) > 1 else line)
        if ended:
            return
        time.sleep(POLL_SECONDS)


class LogTail:
    """Reads new lines of a file. A smaller file or another inode means it was rotated."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode, self._at = self._now()
        self._rest = b""

    def lines(self) -> list[str]:
        inode, size = self._now()
        if inode != self._inode or size < self._at:
            self._inode, self._at = inode, 0
        if size <= self._at:
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            new = file.read(size - self._at)
        self._at += len(new)
        *whole, self._rest = (self._rest + new).split(b"\n")
        return [line.decode(errors="replace") for line in whole]

    def _now(self) -> tuple[int, int]:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return 0, 0
        return found.st_ino, found.st_size
