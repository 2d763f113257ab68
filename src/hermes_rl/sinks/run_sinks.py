"""The sinks of one run: opened and closed together, every line goes to all of them.

Always true: the file ends in a complete line when a run starts to write. A resumable run has one id, stored in a small
file next to its metrics, so it is one run in wandb and trackio however often it is restarted.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.extensions import SINKS
from hermes_rl.sinks.metrics_file import RESUMED, read_metrics
from hermes_rl.sinks.run_ids import RunIds, load_run_ids
from hermes_rl.sinks.selection import SinkConfig, select_sinks
from hermes_rl.sinks.serialize import as_json, flatten
from hermes_rl.sinks.worker import Row, Sink, SinkRun, SinkSteps, Worker
from hermes_rl.store.records import RecordWriter


@dataclass(frozen=True, slots=True)
class MetricsRun:
    """A run as its sinks see it.

    `folder` holds the metrics file and the sinks' files; `config` is public and must not contain secrets. `name`
    defaults to group and time. `resumed_from` is the last valid step of a resumable run, 0 for none; its sinks catch up
    from the file. With None, every start is a new run.
    """

    group: str
    folder: Path
    name: str | None = None
    file: str = "metrics.jsonl"
    config: Mapping[str, Any] = field(default_factory=dict)
    resumed_from: int | None = None


class Sinks:
    """Logs metrics and rollouts of a run. Calls return immediately; only the file can raise, e.g. on a full disk."""

    def __init__(self, file: RecordWriter, workers: Sequence[Worker], resumed_from: int | None = None) -> None:
        self.path = file.path
        self._file = file
        self._workers = tuple(workers)
        self._steps = SinkSteps(_step_after(file.path))
        if resumed_from is not None:
            self.rewind_to(resumed_from)
            earlier = read_metrics(file.path)
            for worker in workers:
                worker.catch_up(earlier)

    def log(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log one line of metrics; the default step is the one after the last."""
        values = dict(flatten(metrics))
        line = {"time": time.time(), "step": self._steps.take(step)}
        self._file.write(line | {name: as_json(value) for name, value in values.items()})
        for worker in self._workers:
            worker.log(values, step)

    def rewind_to(self, step: int) -> None:
        """The run resumes from this step: lines of later steps are superseded."""
        if self._steps.next_step > step + 1:
            self._file.write({"time": time.time(), "step": step, RESUMED: True})
        self._steps = SinkSteps(step + 1)
        for worker in self._workers:
            worker.rewind()

    def rollouts(self, rows: Iterable[Row]) -> None:
        """Log rollouts with their scores as a table at the latest step. The groups file has them in full."""
        if table := tuple(rows):
            for worker in self._workers:
                worker.rollouts(table)

    @property
    def active(self) -> list[str]:
        """The sinks besides the file that are not disabled."""
        return [worker.name for worker in self._workers if not worker.disabled]

    @property
    def failures(self) -> dict[str, int]:
        """Number of failures of each sink."""
        return {worker.name: worker.failures for worker in self._workers if worker.failures}

    @property
    def dropped(self) -> dict[str, int]:
        """Number of lines each sink missed because it was disabled or too far behind."""
        return {worker.name: worker.dropped for worker in self._workers if worker.dropped}

    async def close(self, *, failed: bool = False) -> None:
        """Finish all sinks concurrently."""
        await asyncio.gather(*(worker.close(failed=failed) for worker in self._workers))


@asynccontextmanager
async def open_sinks(run: MetricsRun, config: SinkConfig) -> AsyncIterator[Sinks]:
    """Open the sinks of a run; raises ConfigError if one of `metric_sinks` is not installed."""
    workers = [Worker(sink) for sink in _sinks(run, config)]
    with RecordWriter(run.folder / run.file) as writer:
        sinks = Sinks(writer, workers, run.resumed_from)
        failed = True
        try:
            await asyncio.gather(*(worker.start() for worker in workers))
            yield sinks
            failed = False
        finally:
            await sinks.close(failed=failed)


def _sinks(run: MetricsRun, config: SinkConfig) -> list[Sink]:
    # The only place that reads the sinks' environment variables.
    environment = os.environ
    names = select_sinks(config, environment)
    if not names:
        return []
    ids = RunIds(run.name or f"{run.group}-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    if run.resumed_from is not None:
        ids = load_run_ids(run.folder / f"{Path(run.file).stem}.sinks.json", ids.name)
    shared = SinkRun(ids, run.group, run.config, run.folder, environment)
    return [SINKS.resolve(name)(shared) for name in names]


def _step_after(path: Path) -> int:
    """The step after the file's last line, for a resumed run."""
    with path.open("rb") as lines:
        last = deque(lines, maxlen=1)
    try:
        return int(fast_json.loads(last[0])["step"]) + 1
    except (IndexError, ValueError, KeyError, TypeError):
        return 0
