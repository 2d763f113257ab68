"""The sinks of one run: which ones the configuration asks for, opened and closed together, each line to all of them."""

import asyncio
import importlib.util
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hermes_rl import jsontext
from hermes_rl.environment.config import HermesAgentEnvConfig
from hermes_rl.environment.sinks.trackio_run import TrackioSink
from hermes_rl.environment.sinks.values import as_json, flattened, saved_config
from hermes_rl.environment.sinks.wandb_run import WandbSink, wandb_is_set_up
from hermes_rl.environment.sinks.worker import Row, Sink, Steps, Worker
from hermes_rl.errors import ConfigError
from hermes_rl.store import RecordWriter


class Sinks:
    """Takes metrics and rollouts of a run. Its calls return at once; only the file can raise, as on a full disk."""

    def __init__(self, file: RecordWriter, workers: Sequence[Worker]) -> None:
        self.path = file.path
        self._file = file
        self._workers = tuple(workers)
        self._steps = Steps(_step_after(file.path))

    def log(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """One line of metrics; without a step, at the one that follows the last."""
        values = dict(flattened(metrics))
        line = {"time": time.time(), "step": self._steps.take(step)}
        self._file.write(line | {name: as_json(value) for name, value in values.items()})
        for worker in self._workers:
            worker.log(values, step)

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
async def open_sinks(
    config: HermesAgentEnvConfig, name: str, folder: Path, *, file: str | None = None
) -> AsyncIterator[Sinks]:
    """The sinks of a run of the environment `name`; the file, and what sinks keep in files, is in `folder`.

    ConfigError when a sink that was asked for by name is not installed.
    """
    workers = [Worker(sink) for sink in _sinks(config, name, folder)]
    with RecordWriter(folder / (file or f"{name}.metrics.jsonl")) as writer:
        sinks = Sinks(writer, workers)
        failed = True
        try:
            await asyncio.gather(*(worker.start() for worker in workers))
            yield sinks
            failed = False
        finally:
            await sinks.close(failed=failed)


def chosen(config: HermesAgentEnvConfig, environment: Mapping[str, str]) -> list[str]:
    """The names of the sinks besides the file; ConfigError when one that was asked for is not installed.

    `use_wandb` is true by default, as in Atropos: then wandb is used where somebody has set it up, and where not,
    nobody hears of it. Set to true, it is asked for; set to false, it is not used whatever else is set.
    """
    asked: list[str] = list(dict.fromkeys(config.metric_sinks))
    if "wandb" not in asked and (
        "use_wandb" in config.model_fields_set or (_installed("wandb") and wandb_is_set_up(environment))
    ):
        asked.append("wandb")
    if not config.use_wandb or environment.get("WANDB_MODE") == "disabled":
        asked = [name for name in asked if name != "wandb"]
    for name in asked:
        if not _installed(name):
            without = "--env.use_wandb false" if name == "wandb" else "leave it out of --env.metric_sinks"
            raise ConfigError(f"metrics cannot go to {name}: pip install 'hermes-rl[{name}]', or {without}")
    return asked


def _sinks(config: HermesAgentEnvConfig, name: str, folder: Path) -> list[Sink]:
    run = config.wandb_name or f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    shown = saved_config(config)
    # The one place where the variables of the sinks are read.
    environment = os.environ
    made: dict[str, Sink] = {
        "wandb": WandbSink(run, name, shown, folder, environment),
        "trackio": TrackioSink(run, name, shown),
    }
    return [made[sink] for sink in chosen(config, environment)]


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _step_after(path: Path) -> int:
    """The step that follows a file's last line, for a run that is taken up again."""
    with path.open("rb") as lines:
        last = deque(lines, maxlen=1)
    try:
        return int(jsontext.loads(last[0])["step"]) + 1
    except (IndexError, ValueError, KeyError, TypeError):
        return 0
