"""trackio as a sink: a run in its local database, for `trackio show`. No dashboard is started and no browser opened."""

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, ClassVar

from hermes_rl.sinks.identity import Identity
from hermes_rl.sinks.worker import Row

PROJECT = "hermes-rl"
# Two that redirect at once would each put back what the other had set.
_QUIET = threading.Lock()


class TrackioSink:
    package: ClassVar[str] = "trackio"

    def __init__(self, known: Identity, group: str, config: Mapping[str, Any]) -> None:
        # trackio takes up a run by its name alone, and another may have the same.
        self.name = f"{known.name}-{known.id}" if known.id else known.name
        self.resume = "allow" if known.id else "never"
        self.group, self.config = group, dict(config)
        self._run: Any = None

    def start(self) -> str:
        import trackio

        with _nothing_on_stdout():
            self._run = trackio.init(
                project=PROJECT,
                name=self.name,
                group=self.group,
                config=self.config,
                resume=self.resume,
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        return f"keeps the run {self.name}; see it with: trackio show --project {PROJECT}"

    def next_step(self) -> int:
        # trackio has no public name for it. Without one the sink would take again the steps it has.
        return int(getattr(self._run, "_next_step", 0))

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def rollouts(self, rows: Sequence[Row], step: int) -> None:
        import trackio

        table = trackio.Table(columns=["text", "score"], data=[list(row) for row in rows])
        self._run.log({"train/rollouts": table}, step=step)

    def finish(self, *, failed: bool) -> None:
        with _nothing_on_stdout():
            self._run.finish()


@contextmanager
def _nothing_on_stdout() -> Iterator[None]:
    """What trackio prints goes to standard error: standard output is for `--json`."""
    with _QUIET, redirect_stdout(sys.stderr):
        yield
