"""Metrics files that are looked at again and again, as the page of a living run does.

Always true: a look reads what was written since the last one, and the whole file where it was replaced or cut. What is
kept is bounded, whatever the length of the run: numbers only, and of a long run the older steps evenly thinned. The
newest steps are all there, and of every name the newest step that has it.
"""

import os
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, NamedTuple

from hermes_rl.errors import ConfigError
from hermes_rl.sinks.reading import RESUMED, metrics_in

# About 60 bytes each.
VALUES = 200_000
VALUES_OF_ALL = 1_000_000
FILES = 100
NAMES = 1_000
RECENT = 64
LINE = 4 * 2**20
TAIL = 256

Row = dict[str, Any]


class Steps(NamedTuple):
    """`rows` are all that are kept, `spaced` those of them that are `every` steps apart, and the newest. In order."""

    rows: list[Row]
    spaced: list[Row]
    every: int


class Followed:
    """Any number of metrics files. Called from several threads."""

    def __init__(self) -> None:
        self._files: dict[Path, MetricsFile] = {}
        self._lock = Lock()

    def steps(self, path: Path) -> Steps:
        """OSError and ConfigError as `read_metrics` has them."""
        with self._lock:
            # The one that is asked for becomes the last.
            file = self._files.pop(path) if path in self._files else MetricsFile(path)
            self._files[path] = file
            try:
                return file.steps()
            finally:
                self._let_go()

    def rows(self, path: Path) -> list[Row]:
        return self.steps(path).rows

    def _let_go(self) -> None:
        while len(self._files) > 1 and (
            len(self._files) > FILES or sum(file.values for file in self._files.values()) > VALUES_OF_ALL
        ):
            self._files.pop(next(iter(self._files)))


class MetricsFile:
    """One metrics file, and how far it was read. `values` is the number of values that are kept of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None
        self._begin()

    def _begin(self) -> None:
        self._offset = 0
        self._lines = 0
        self._tail = b""
        self._every = 1
        self._names = {"time", "step"}
        self._rows: dict[int, tuple[int, Row]] = {}
        """By step: its place among all steps, and its metrics. A row is never changed, as others may hold it."""
        self._most = VALUES
        self.values = 0

    def steps(self) -> Steps:
        with self._path.open("rb") as file:
            told = os.fstat(file.fileno())
            if self._identity != (told.st_dev, told.st_ino) or not self._goes_on(file, told.st_size):
                self._begin()
                self._identity = (told.st_dev, told.st_ino)
            file.seek(self._offset)
            while (line := file.readline(LINE)).endswith(b"\n"):
                self._take(metrics_in(line, self._path, self._lines + 1))
                self._offset += len(line)
                self._lines += 1
                self._tail = (self._tail + line)[-TAIL:]
        if len(line) == LINE:
            raise ConfigError(f"{self._path}, line {self._lines + 1} holds no metrics: it has more than {LINE:,} bytes")
        kept = list(self._rows.values())
        return Steps(
            rows=[row for _, row in kept],
            spaced=[row for place, row in kept if place % self._every == 0 or place == kept[-1][0]],
            every=self._every,
        )

    def _goes_on(self, file: BinaryIO, size: int) -> bool:
        """Whether what was read is still there."""
        if size < self._offset:
            return False
        file.seek(self._offset - len(self._tail))
        return file.read(len(self._tail)) == self._tail

    def _take(self, metrics: Row) -> None:
        step = metrics["step"]
        while self._rows and next(reversed(self._rows)) > step:
            _, (_, row) = self._rows.popitem()
            self.values -= len(row)
        if RESUMED in metrics:
            return
        last = next(reversed(self._rows.values()), (-1, {}))
        place, before = self._rows.get(step, (last[0] + 1, {}))
        row = before | {name: value for name, value in metrics.items() if _is_number(value) and self._known(name)}
        self._rows[step] = (place, row)
        self.values += len(row) - len(before)
        if self.values > self._most:
            self._thin()

    def _known(self, name: str) -> bool:
        if len(self._names) < NAMES:
            self._names.add(name)
        return name in self._names

    def _thin(self) -> None:
        newest = {name: step for step, (_, row) in self._rows.items() for name in row}
        kept = {*newest.values(), *list(self._rows)[-RECENT:]}
        last, _ = next(reversed(self._rows.values()))
        # Half is left free, so that it is not done again for each line; nor is it where little can be left out.
        while self.values > VALUES // 2 and self._every <= last:
            self._rows = {
                step: (place, row)
                for step, (place, row) in self._rows.items()
                if place % self._every == 0 or step in kept
            }
            self.values = sum(len(row) for _, row in self._rows.values())
            if self.values > VALUES // 2:
                self._every *= 2
        self._most = max(VALUES, 2 * self.values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
