"""The logs of a run's parts, from their end and as they grow."""

import time
from pathlib import Path

import click

from hermes_rl.errors import ConfigError
from hermes_rl.runs.places import RunPlaces
from hermes_rl.runs.watching.logs import log_lines, log_parts
from hermes_rl.runs.watching.status import status

LOOK_EVERY = 0.3


def logged_parts(run_id: str) -> list[str]:
    places = RunPlaces(run_id)
    return [part for part in log_parts(places, list(status(run_id)["processes"])) if places.log(part).exists()]


def chosen_parts(run_id: str, part: str | None) -> list[str]:
    """All that have a log, or the one that is named."""
    there = logged_parts(run_id)
    if part is None:
        if not there:
            raise ConfigError(f"the run {run_id} has no log yet; `hermes-rl run status {run_id}` tells how far it is")
        return there
    if part not in there:
        raise ConfigError(f"the run {run_id} has no log of {part!r}; it has {', '.join(there) or 'none yet'}")
    return [part]


def show_end(run_id: str, parts: list[str], lines: int) -> None:
    for part in parts:
        if len(parts) > 1:
            click.echo(click.style(f"--- {part}: {RunPlaces(run_id).log(part)}", bold=True))
        click.echo(log_lines(run_id, part, lines).rstrip("\n"))


def follow_logs(run_id: str, parts: list[str]) -> None:
    """Print what is written from now on, until the run has ended; each line with its part where there are several."""
    growing = {part: Growing(RunPlaces(run_id).log(part)) for part in parts}
    while True:
        over = status(run_id)["ended"]
        for part, log in growing.items():
            for line in log.lines():
                click.echo(f"{part}: {line}" if len(parts) > 1 else line)
        if over:
            return
        time.sleep(LOOK_EVERY)


class Growing:
    """A file read from where it was left. One that is smaller than that, or another file, was rotated."""

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
