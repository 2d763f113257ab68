import os
import subprocess
import sys
from dataclasses import replace

from hermes_rl.core.process_identity import process_start_time
from hermes_rl.training.engines.skyrl.record import EngineRecord, all_records, read_record


def own_record(name: str = "one") -> EngineRecord:
    return EngineRecord(name, os.getpid(), process_start_time(os.getpid()) or "", 1234, "/model", "/log")


def test_a_record_is_read_as_it_was_written() -> None:
    own_record().write()
    assert read_record("one") == own_record()


def test_an_engine_that_was_never_started_has_none() -> None:
    assert read_record("one") is None


def test_all_records_are_found_by_name() -> None:
    for name in ("two", "one"):
        own_record(name).write()
    assert [record.name for record in all_records()] == ["one", "two"]


def test_a_running_process_is_alive() -> None:
    assert own_record().alive()


def test_a_process_that_only_has_the_same_id_is_not_the_one_that_was_recorded() -> None:
    assert not replace(own_record(), began="at another moment").alive()


def test_a_process_that_ended_is_not_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    began = process_start_time(process.pid)
    # Not waited for before: until then it has ended and still has its id.
    while process_start_time(process.pid) is not None:
        pass
    assert began is not None
    process.wait()
    assert process_start_time(process.pid) is None
