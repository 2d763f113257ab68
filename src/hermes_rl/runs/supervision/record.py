"""A run's row in the store: kept up with its phase, beside the supervisor's work.

Always true: writing it never holds the supervisor up; a row that could not be written is written with the next try.
"""

import asyncio
import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait

from hermes_rl.runs.places import RunPlaces, records
from hermes_rl.runs.run_file import RunFile, read_run_file
from hermes_rl.runs.states import Phase

log = logging.getLogger(__name__)

AGAIN_AFTER = 5.0
LAST_SECONDS = 10.0


class Record:
    def __init__(self, places: RunPlaces) -> None:
        self._places = places
        self._writer = ThreadPoolExecutor(1, "hermes-rl-record")
        self._writing: Future[None] | None = None
        self._phase: Phase | None = None
        self._written: Phase | None = None
        self._next = 0.0

    def put(self, phase: Phase) -> None:
        """Call it again and again: it writes when there is news, or when the last try failed."""
        self._phase = phase
        if self._writing is not None:
            if not self._writing.done():
                return
            if error := self._writing.exception():
                log.warning("the run's record cannot be written: %s", error)
                self._written, self._next = None, time.monotonic() + AGAIN_AFTER
            self._writing = None
        if self._written is phase or time.monotonic() < self._next:
            return
        self._written = phase
        self._writing = self._writer.submit(self._write, phase)

    def close(self) -> None:
        """The last phase is written, if that is possible within some seconds."""
        if self._writing is not None:
            wait([self._writing], LAST_SECONDS)
        if self._phase is not None:
            self._next = 0.0
            self.put(self._phase)
        if self._writing is not None:
            wait([self._writing], LAST_SECONDS)
        self._writer.shutdown(wait=False)

    def _write(self, phase: Phase) -> None:
        asyncio.run(written(read_run_file(self._places.file), phase))


async def written(run_file: RunFile, phase: Phase) -> None:
    from hermes_rl.store.database.store import open_store

    async with open_store(records()) as store:
        settings = run_file.model_dump(mode="json")
        await store.put_run(run_file.run_id, name=run_file.name, state=phase, settings=settings)
