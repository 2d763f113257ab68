import asyncio
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from hermes_rl.orchestration.run_file import read_run_file
from hermes_rl.orchestration.run_paths import RunPaths, runs_database
from hermes_rl.orchestration.run_state import Phase
from hermes_rl.orchestration.supervision import store_record
from hermes_rl.orchestration.supervision.store_record import RunRecord
from hermes_rl.store.database.store import open_store
from tests.support.recorded_runs import run_file


async def recorded_states() -> list[str | None]:
    async with open_store(runs_database()) as store:
        return [run.state for run in await store.runs()]


def test_the_run_file_is_read_once_for_all_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    paths = RunPaths("r1")
    run_file("r1").write(paths.file)
    read = Mock(wraps=read_run_file)
    monkeypatch.setattr(store_record, "read_run_file", read)
    record = RunRecord(paths)
    record.put(Phase.STARTING)
    # Until the first phase is written, the second one waits.
    while asyncio.run(recorded_states()) != [Phase.STARTING]:
        time.sleep(0.01)
    record.put(Phase.RUNNING)
    record.close()
    assert asyncio.run(recorded_states()) == [Phase.RUNNING]
    assert read.call_count == 1
