"""The metrics of the environment inside, written where it writes them and kept for atroposlib's own wandb run."""

from collections.abc import Iterable, Mapping
from typing import Any

from hermes_rl.sinks.opening import Sinks
from hermes_rl.sinks.values import flattened
from hermes_rl.sinks.worker import Row


class HeardSinks:
    """Stands for the sinks of an open environment; `take` gives what they were told since the last time."""

    def __init__(self) -> None:
        self.sinks: Sinks | None = None
        self._metrics: dict[str, Any] = {}

    def log(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        self._metrics.update(flattened(metrics))
        if self.sinks is not None:
            self.sinks.log(metrics, step)

    def rollouts(self, rows: Iterable[Row]) -> None:
        if self.sinks is not None:
            self.sinks.rollouts(rows)

    def take(self) -> dict[str, Any]:
        taken, self._metrics = self._metrics, {}
        return {name: value for name, value in taken.items() if value is not None}
