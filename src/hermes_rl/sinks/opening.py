"""The sinks of one run, opened and closed together, each line to all of them.

Always true: the file ends in a whole line when a run begins to write. A run that can be taken up again has one
identity, kept in a small file beside its metrics, and is one run in wandb and trackio however often it is started.
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

from hermes_rl import jsontext
from hermes_rl.sinks.choice import Asked, chosen
from hermes_rl.sinks.identity import Identity, identity
from hermes_rl.sinks.reading import RESUMED, read_metrics
from hermes_rl.sinks.trackio_run import TrackioSink
from hermes_rl.sinks.values import as_json, flattened
from hermes_rl.sinks.wandb_run import WandbSink
from hermes_rl.sinks.worker import Row, Sink, Steps, Worker
from hermes_rl.store.records import RecordWriter


@dataclass(frozen=True, slots=True)
class MetricsRun:
    """A run as its sinks know it.

    `folder` has its file and what sinks keep in files; `config` is shown to others, so it holds no secret. `name` is
    after group and time when None. `resumed_from` is the last step that still counts, 0 for none, of a run that can be
    taken up again; its sinks take from the file what they lack. When it is None, every start is a run of its own.
    """

    group: str
    folder: Path
    name: str | None = None
    file: str = "metrics.jsonl"
    config: Mapping[str, Any] = field(default_factory=dict)
    resumed_from: int | None = None


class Sinks:
    """Takes metrics and rollouts of a run. Its calls return at once; only the file can raise, as on a full disk."""

    def __init__(self, file: RecordWriter, workers: Sequence[Worker], resumed_from: int | None = None) -> None:
        self.path = file.path
        self._file = file
        self._workers = tuple(workers)
        self._steps = Steps(_step_after(file.path))
        if resumed_from is not None:
            self.back_to(resumed_from)
            earlier = read_metrics(file.path)
            for worker in workers:
                worker.catch_up(earlier)

    def log(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """One line of metrics; without a step, at the one that follows the last."""
        values = dict(flattened(metrics))
        line = {"time": time.time(), "step": self._steps.take(step)}
        self._file.write(line | {name: as_json(value) for name, value in values.items()})
        for worker in self._workers:
            worker.log(values, step)

    def back_to(self, step: int) -> None:
        """The run goes on from this step: lines of later ones no longer count, and those steps come again."""
        if self._steps.following > step + 1:
            self._file.write({"time": time.time(), "step": step, RESUMED: True})
        self._steps = Steps(step + 1)
        for worker in self._workers:
            worker.back()

    def rollouts(self, rows: Iterable[Row]) -> None:
        """Rollouts as text with their scores: a table at the latest step. The groups' own file has them whole."""
        if kept := tuple(rows):
            for worker in self._workers:
                worker.rollouts(kept)

    @property
    def on(self) -> list[str]:
        """The sinks besides the file that have not been switched off."""
        return [worker.name for worker in self._workers if not worker.off]

    @property
    def failures(self) -> dict[str, int]:
        """How often each sink failed."""
        return {worker.name: worker.failures for worker in self._workers if worker.failures}

    @property
    def dropped(self) -> dict[str, int]:
        """How many lines each sink missed because it was off or behind."""
        return {worker.name: worker.dropped for worker in self._workers if worker.dropped}

    async def close(self, *, failed: bool = False) -> None:
        """Let every sink finish, at the same time."""
        await asyncio.gather(*(worker.close(failed=failed) for worker in self._workers))


@asynccontextmanager
async def open_sinks(run: MetricsRun, asked: Asked) -> AsyncIterator[Sinks]:
    """The sinks of a run; ConfigError when one that was asked for by name is not installed."""
    workers = [Worker(sink) for sink in _sinks(run, asked)]
    with RecordWriter(run.folder / run.file) as writer:
        sinks = Sinks(writer, workers, run.resumed_from)
        failed = True
        try:
            await asyncio.gather(*(worker.start() for worker in workers))
            yield sinks
            failed = False
        finally:
            await sinks.close(failed=failed)


def _sinks(run: MetricsRun, asked: Asked) -> list[Sink]:
    # The one place where the variables of the sinks are read.
    environment = os.environ
    names = chosen(asked, environment)
    if not names:
        return []
    known = Identity(run.name or f"{run.group}-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    if run.resumed_from is not None:
        known = identity(run.folder / f"{Path(run.file).stem}.sinks.json", known)
    made: dict[str, Sink] = {
        "wandb": WandbSink(known, run.group, run.config, run.folder, environment),
        "trackio": TrackioSink(known, run.group, run.config),
    }
    return [made[name] for name in names]


def _step_after(path: Path) -> int:
    """The step that follows a file's last line, for a run that is taken up again."""
    with path.open("rb") as lines:
        last = deque(lines, maxlen=1)
    try:
        return int(jsontext.loads(last[0])["step"]) + 1
    except (IndexError, ValueError, KeyError, TypeError):
        return 0
