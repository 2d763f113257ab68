"""The run's row in the store, updated with its phase on a background thread.

Always true: writing never blocks the supervisor; a failed write is retried.
"""

import asyncio
import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait

from hermes_rl.orchestration.run_file import RunFile, read_run_file
from hermes_rl.orchestration.run_paths import RunPaths, runs_database
from hermes_rl.orchestration.run_state import Phase

log = logging.getLogger(__name__)

RETRY_AFTER = 5.0
CLOSE_TIMEOUT = 10.0


class RunRecord:
    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._run_file: RunFile | None = None
        self._writer = ThreadPoolExecutor(1, "hermes-rl-record")
        self._writing: Future[None] | None = None
        self._phase: Phase | None = None
        self._written: Phase | None = None
        self._next = 0.0

    def put(self, phase: Phase) -> None:
        """Write the phase if it changed or the last write failed. Call it on every tick."""
        self._phase = phase
        if self._writing is not None:
            if not self._writing.done():
                return
            if error := self._writing.exception():
                log.warning("cannot write the run's record: %s", error)
                self._written, self._next = None, time.monotonic() + RETRY_AFTER
            self._writing = None
        if self._written is phase or time.monotonic() < self._next:
            return
        self._written = phase
        self._writing = self._writer.submit(self._write, phase)

    def close(self) -> None:
        """Try to write the last phase, for a few seconds."""
        if self._writing is not None:
            wait([self._writing], CLOSE_TIMEOUT)
        if self._phase is not None:
            self._next = 0.0
            self.put(self._phase)
        if self._writing is not None:
            wait([self._writing], CLOSE_TIMEOUT)
        self._writer.shutdown(wait=False)

    def _write(self, phase: Phase) -> None:
        self._run_file = self._run_file or read_run_file(self._paths.file)
        asyncio.run(write_record(self._run_file, phase))


async def write_record(run_file: RunFile, phase: Phase) -> None:
    from hermes_rl.store.database.store import open_store

    async with open_store(runs_database()) as store:
        settings = run_file.model_dump(mode="json")
        await store.put_run(run_file.run_id, name=run_file.name, state=phase, settings=settings)
