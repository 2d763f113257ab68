"""A metric sink in one file: every step is a line of `metrics.csv` in the run's folder.

Use it with `--env.metric_sinks '["examples/extensions/csv_sink.py:CsvSink"]'`.
"""

import csv
from collections.abc import Mapping, Sequence
from typing import Any

from hermes_rl.sinks.worker import Row, SinkRun


class CsvSink:
    """Every method may block: a sink runs in its own thread."""

    package = "csv"

    def __init__(self, run: SinkRun) -> None:
        self.path = run.folder / "metrics.csv"

    def start(self) -> str:
        self._file = self.path.open("a", newline="")
        self._writer = csv.writer(self._file)
        return f"writes {self.path}"

    def next_step(self) -> int:
        return 0

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self._writer.writerows((step, name, value) for name, value in metrics.items())

    def rollouts(self, rows: Sequence[Row], step: int) -> None:
        """Rollouts as text belong to a viewer, not to a table of numbers."""

    def finish(self, *, failed: bool) -> None:
        self._file.close()
