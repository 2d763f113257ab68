"""The trackio sink: logs to its local database, for `trackio show`; starts no dashboard and opens no browser."""

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, ClassVar

from hermes_rl.sinks.worker import Row, SinkRun

PROJECT = "hermes-rl"
# Concurrent redirects would restore each other's stream.
_REDIRECT_LOCK = threading.Lock()


class TrackioSink:
    package: ClassVar[str] = "trackio"

    def __init__(self, run: SinkRun) -> None:
        ids = run.ids
        # trackio resumes a run by name alone, which may not be unique.
        self.name = f"{ids.name}-{ids.id}" if ids.id else ids.name
        self.resume = "allow" if ids.id else "never"
        self.group, self.config = run.group, dict(run.config)
        self._run: Any = None

    def start(self) -> str:
        import trackio

        with _stdout_to_stderr():
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
        return f"logs to run {self.name}; view it with: trackio show --project {PROJECT}"

    def next_step(self) -> int:
        # trackio has no public attribute for it. Without it, logged steps would be logged again.
        return int(getattr(self._run, "_next_step", 0))

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def rollouts(self, rows: Sequence[Row], step: int) -> None:
        import trackio

        table = trackio.Table(columns=["text", "score"], data=[list(row) for row in rows])
        self._run.log({"train/rollouts": table}, step=step)

    def finish(self, *, failed: bool) -> None:
        with _stdout_to_stderr():
            self._run.finish()


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send trackio's output to stderr: stdout is for `--json`."""
    with _REDIRECT_LOCK, redirect_stdout(sys.stderr):
        yield
