"""A short form of scripts/api_chaos.py on both databases, and faults planted into it that the referee must find."""

import sqlite3
import time
from contextlib import closing, suppress

import pytest

from tests.chaos.trajectory.chaos import Outcome, Scene, run
from tests.chaos.trajectory.referee import Plan
from tests.support.long_suites import in_the_gate

# They take less than a minute, but a machine that does other things too starts processes slowly.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

FEW = Plan(api=6, producers=4, consumer=4, disk_full=True)
MEGABYTES = 400


def short(database: str, plan: Plan, replicas: int = 1) -> Outcome:
    return run(Scene(database, plan, replicas=replicas, megabytes=MEGABYTES, most_seconds=180))


@pytest.mark.parametrize("plan", in_the_gate([Plan(api=2, producers=1, consumer=1, disk_full=True), FEW], 1))
def test_killed_apis_producers_and_consumers_and_a_full_disk_lose_and_double_nothing_on_sqlite(plan: Plan) -> None:
    assert short("sqlite", plan).breaches == []


@pytest.mark.long
@pytest.mark.parts
def test_the_same_and_a_restart_of_the_database_lose_and_double_nothing_on_postgresql() -> None:
    plan = Plan(api=6, producers=4, consumer=4, restarts=1, disk_full=True)
    assert short("postgresql", plan).breaches == []


@pytest.mark.long
@pytest.mark.parts
def test_three_replicas_over_one_postgresql_keep_the_same_promise() -> None:
    assert short("postgresql", Plan(api=4, producers=2, consumer=2), replicas=3).breaches == []


def quiet(plant: str = "none") -> Scene:
    """Nothing is killed, so that what is found was planted."""
    return Scene("sqlite", Plan(), producers=1, settle=2, megabytes=MEGABYTES, plant=plant)


def some_groups(address: str, number: int = 4) -> None:
    """Wait until so many came, however slow the machine is."""
    with closing(sqlite3.connect(address, timeout=10)) as store:
        while True:
            # There is no table before the API has made it.
            with suppress(sqlite3.OperationalError):
                if store.execute("SELECT 1 FROM groups WHERE place = ?", (number,)).fetchone():
                    return
            time.sleep(0.05)


def forget_a_group(address: str) -> None:
    """As a store would that lost an answered group, the second that came."""
    some_groups(address, 3)
    with closing(sqlite3.connect(address, timeout=10)) as store, store:
        for table in ("groups", "blobs", "queue", "outcomes"):
            store.execute(f"DELETE FROM {table} WHERE place = 2")


@pytest.mark.long
def test_a_store_that_forgets_an_answered_group_is_found_out() -> None:
    assert "answered but not in the store: p0/1" in run(quiet(), forget_a_group).breaches


@pytest.mark.long
def test_a_consumer_that_trains_on_a_batch_twice_is_found_out() -> None:
    assert any(
        breach.startswith("trained on more than once: p0/0") for breach in run(quiet("twice"), some_groups).breaches
    )


@pytest.mark.long
def test_a_pair_that_was_posted_in_the_wrong_order_is_found_out() -> None:
    assert "out of its order: p0/1 after 2" in run(quiet("swap"), some_groups).breaches
