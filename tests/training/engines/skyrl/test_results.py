"""Waiting for results in a database that another process writes to."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hermes_rl.training.engines.skyrl.inside.hermes_skyrl import results as module
from hermes_rl.training.engines.skyrl.inside.hermes_skyrl.db_watch import ChangeWatcher
from hermes_rl.training.engines.skyrl.inside.hermes_skyrl.idempotency import RequestCache
from hermes_rl.training.engines.skyrl.inside.hermes_skyrl.results import ResultWaiter


@pytest.fixture
def database(tmp_path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(tmp_path / "t.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(
        "CREATE TABLE futures (request_id INTEGER PRIMARY KEY, status, request_type, request_data, result_data, "
        "completed_at)"
    )
    rows = [(1, "PENDING", "SAMPLE"), (2, "COMPLETED", "SAMPLE"), (3, "FAILED", "SAMPLE"), (4, "PENDING", "OPTIM_STEP")]
    connection.executemany("INSERT INTO futures (request_id, status, request_type) VALUES (?, ?, ?)", rows)
    return connection


@pytest.fixture
async def results(database: sqlite3.Connection, tmp_path: Path) -> AsyncIterator[ResultWaiter]:
    async with ResultWaiter(f"sqlite:///{tmp_path}/t.db") as results:
        yield results
    database.close()


@pytest.mark.parametrize("request_id", [2, 3, 99])
async def test_what_is_done_or_unknown_is_not_waited_for(results: ResultWaiter, request_id: int) -> None:
    assert await results.done(request_id, 0.05)


async def test_what_is_not_done_in_time_is_said_to_be_so(results: ResultWaiter) -> None:
    assert not await results.done(1, 0.05)


async def test_a_result_is_told_as_soon_as_it_is_there(results: ResultWaiter, database: sqlite3.Connection) -> None:
    waiting = [asyncio.create_task(results.done(1, 30.0)) for _ in range(3)]
    await asyncio.sleep(0.05)
    began = time.monotonic()
    database.execute("UPDATE futures SET status = 'COMPLETED' WHERE request_id = 1")
    assert await asyncio.gather(*waiting) == [True] * 3
    assert time.monotonic() - began < 15


async def test_one_who_gives_up_does_not_end_the_wait_of_another(
    results: ResultWaiter, database: sqlite3.Connection
) -> None:
    patient = asyncio.create_task(results.done(1, 30.0))
    assert not await results.done(1, 0.05)
    database.execute("UPDATE futures SET status = 'COMPLETED' WHERE request_id = 1")
    async with asyncio.timeout(5):
        assert await patient


async def test_a_change_elsewhere_does_not_end_the_wait(results: ResultWaiter, database: sqlite3.Connection) -> None:
    waiting = asyncio.create_task(results.done(1, 0.3))
    await asyncio.sleep(0.05)
    database.execute("INSERT INTO futures (request_id, status) VALUES (5, 'PENDING')")
    assert not await waiting


def state(database: sqlite3.Connection, request_id: int) -> str:
    return str(database.execute("SELECT status FROM futures WHERE request_id = ?", (request_id,)).fetchone()[0])


async def test_samples_that_nobody_waits_for_are_not_drawn(
    results: ResultWaiter, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.05)
    results.disconnect(1)
    async with asyncio.timeout(30):
        while state(database, 1) != "FAILED":
            await asyncio.sleep(0.01)


async def test_a_step_is_taken_whether_or_not_somebody_waits(
    results: ResultWaiter, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.05)
    results.disconnect(4)
    await asyncio.sleep(0.3)
    assert state(database, 4) == "PENDING"


async def test_samples_of_one_who_is_back_in_time_are_drawn(
    results: ResultWaiter, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.05)
    results.disconnect(1)
    assert not await results.done(1, 0.2)
    assert state(database, 1) == "PENDING"


async def test_samples_that_another_waits_for_are_drawn(
    results: ResultWaiter, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.05)
    other = asyncio.create_task(results.done(1, 0.3))
    await asyncio.sleep(0.01)
    results.disconnect(1)
    assert not await other
    assert state(database, 1) == "PENDING"


def test_a_wait_for_changes_ends_in_time_when_there_are_none(database: sqlite3.Connection, tmp_path: Path) -> None:
    changes = ChangeWatcher(f"sqlite:///{tmp_path}/t.db")
    began = time.monotonic()
    changes.wait(0.05)
    assert time.monotonic() - began >= 0.05
    changes.close()
    database.close()


def test_a_change_is_seen_once(database: sqlite3.Connection, tmp_path: Path) -> None:
    changes = ChangeWatcher(f"sqlite:///{tmp_path}/t.db")
    database.execute("DELETE FROM futures")
    assert (changes.changed(), changes.changed()) == (True, False)
    changes.close()
    database.close()


async def test_a_request_that_is_sent_again_gets_the_first_answer() -> None:
    calls = 0

    async def submit() -> int:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.01)
        return calls

    once = RequestCache()
    assert await asyncio.gather(*(once.answer("a", submit) for _ in range(3))) == [1, 1, 1]
    assert await once.answer("b", submit) == 2


async def test_a_request_that_failed_may_be_tried_again() -> None:
    answers = iter([ValueError("no"), "yes"])

    async def submit() -> str:
        answer = next(answers)
        if isinstance(answer, ValueError):
            raise answer
        return str(answer)

    once = RequestCache()
    with pytest.raises(ValueError, match="no"):
        await once.answer("a", submit)
    assert await once.answer("a", submit) == "yes"
