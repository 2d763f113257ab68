"""benchmarks/in_flight.py: what it says to be in flight was open at one moment, and what bends is named."""

from typing import Any

import pytest

from benchmarks.in_flight import Level, bends, goals, measured, table

STRAIGHT = {"succeeded": 1.0, "lag_p99_ms": 5.0, "gap_p99_ms": 9.0, "cpu_share_of_a_core": 0.2, "causes": []}


@pytest.mark.slow
def test_rollouts_of_two_replicas_wait_at_one_moment_and_all_succeed() -> None:
    row = measured(Level(24, 1.0, replicas=2))
    # All of them, unless one process began when the other's first rollouts had their answers.
    assert 12 <= row["counted_in_flight"] <= 24
    assert row["succeeded"] == 1.0
    assert row["turns_per_second"] > 0
    assert f"| 24 ({row['counted_in_flight']}) | 2 |" in table(
        {"date": "today", "size": "small", "machine": machine(), "figures": {"one": row}}
    )


def test_a_level_that_holds_does_not_bend() -> None:
    assert bends(STRAIGHT) == []


def test_a_level_bends_by_failures_lag_gaps_and_a_full_core() -> None:
    bad = {"succeeded": 0.5, "lag_p99_ms": 500.0, "gap_p99_ms": 5000.0, "cpu_share_of_a_core": 0.99}
    found = bends({**bad, "causes": ["endpoint/connection"]})
    assert len(found) == 4
    assert "endpoint/connection" in found[0]


def test_goals_are_held_against_the_slowest_model_alone() -> None:
    slow = {**STRAIGHT, "delay": 30.0, "in_flight": 10, "counted_in_flight": 10}
    found = goals({"slow": slow, "fast": {**slow, "delay": 3.0, "lag_p99_ms": 900.0}})
    assert all(goal["met"] for goal in found.values())
    assert {name.partition(":")[0] for name in found} == {"slow"}


def machine() -> dict[str, Any]:
    return {"cores": 2, "cpu": "any", "memory_gb": 1.0, "kernel": "6", "python": "3.11"}
