"""Incremental reads of metrics files, for pages that poll a live run.

Always true: a read takes only what was appended since the last one, or the whole file if it was replaced or truncated.
Memory is bounded for any run length: only numbers are kept, and older steps of a long run are thinned evenly. All
recent steps are kept, and for every name the newest step that has it.
"""

import os
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, NamedTuple

from hermes_rl.core.errors import ConfigError
from hermes_rl.sinks.metrics_file import RESUMED, parse_line

# About 60 bytes each.
MAX_VALUES = 200_000
MAX_TOTAL_VALUES = 1_000_000
MAX_FILES = 100
MAX_NAMES = 1_000
RECENT_STEPS = 64
MAX_LINE_BYTES = 4 * 2**20
TAIL_BYTES = 256

Row = dict[str, Any]


class MetricRows(NamedTuple):
    """In step order: `rows` are all stored rows, `spaced` every `every`-th step and the newest."""

    rows: list[Row]
    spaced: list[Row]
    every: int


class MetricsTail:
    """An LRU cache of metrics files. Thread-safe."""

    def __init__(self) -> None:
        self._files: dict[Path, MetricsFile] = {}
        self._lock = Lock()

    def steps(self, path: Path) -> MetricRows:
        """Raises OSError and ConfigError like `read_metrics`."""
        with self._lock:
            file = self._files.pop(path) if path in self._files else MetricsFile(path)
            self._files[path] = file
            try:
                return file.steps()
            finally:
                self._evict()

    def rows(self, path: Path) -> list[Row]:
        return self.steps(path).rows

    def _evict(self) -> None:
        while len(self._files) > 1 and (
            len(self._files) > MAX_FILES or sum(file.values for file in self._files.values()) > MAX_TOTAL_VALUES
        ):
            self._files.pop(next(iter(self._files)))


class MetricsFile:
    """One metrics file and the read position. `values` is the number of stored values."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None
        self._reset()

    def _reset(self) -> None:
        self._offset = 0
        self._lines = 0
        self._tail = b""
        self._every = 1
        self._names = {"time", "step"}
        self._rows: dict[int, tuple[int, Row]] = {}
        """By step: its index among all steps, and its metrics. Rows are never modified: callers may hold them."""
        self._limit = MAX_VALUES
        self.values = 0

    def steps(self) -> MetricRows:
        with self._path.open("rb") as file:
            stat = os.fstat(file.fileno())
            if self._identity != (stat.st_dev, stat.st_ino) or not self._is_continued(file, stat.st_size):
                self._reset()
                self._identity = (stat.st_dev, stat.st_ino)
            file.seek(self._offset)
            while (line := file.readline(MAX_LINE_BYTES)).endswith(b"\n"):
                self._apply(parse_line(line, self._path, self._lines + 1))
                self._offset += len(line)
                self._lines += 1
                self._tail = (self._tail + line)[-TAIL_BYTES:]
        if len(line) == MAX_LINE_BYTES:
            raise ConfigError(
                f"{self._path}, line {self._lines + 1} is not a metrics line: it has more than {MAX_LINE_BYTES:,} bytes"
            )
        rows = list(self._rows.values())
        return MetricRows(
            rows=[row for _, row in rows],
            spaced=[row for index, row in rows if index % self._every == 0 or index == rows[-1][0]],
            every=self._every,
        )

    def _is_continued(self, file: BinaryIO, size: int) -> bool:
        """Whether the file still starts with what was read."""
        if size < self._offset:
            return False
        file.seek(self._offset - len(self._tail))
        return file.read(len(self._tail)) == self._tail

    def _apply(self, metrics: Row) -> None:
        step = metrics["step"]
        while self._rows and next(reversed(self._rows)) > step:
            _, (_, row) = self._rows.popitem()
            self.values -= len(row)
        if RESUMED in metrics:
            return
        last = next(reversed(self._rows.values()), (-1, {}))
        index, before = self._rows.get(step, (last[0] + 1, {}))
        row = before | {name: value for name, value in metrics.items() if _is_number(value) and self._is_tracked(name)}
        self._rows[step] = (index, row)
        self.values += len(row) - len(before)
        if self.values > self._limit:
            self._thin()

    def _is_tracked(self, name: str) -> bool:
        if len(self._names) < MAX_NAMES:
            self._names.add(name)
        return name in self._names

    def _thin(self) -> None:
        newest = {name: step for step, (_, row) in self._rows.items() for name in row}
        required = {*newest.values(), *list(self._rows)[-RECENT_STEPS:]}
        last, _ = next(reversed(self._rows.values()))
        # Thin to half the limit, so that not every line thins again; stop when little can be dropped.
        while self.values > MAX_VALUES // 2 and self._every <= last:
            self._rows = {
                step: (index, row)
                for step, (index, row) in self._rows.items()
                if index % self._every == 0 or step in required
            }
            self.values = sum(len(row) for _, row in self._rows.values())
            if self.values > MAX_VALUES // 2:
                self._every *= 2
        self._limit = max(MAX_VALUES, 2 * self.values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
