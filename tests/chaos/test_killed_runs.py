"""A short form of tests/chaos/killed_runs.py: each mode and source of items is killed a few times and resumed."""

from random import Random

import pytest

from tests.chaos.killed_runs import scripted

DELAY = 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "variant"),
    [
        ("process", "stream"),
        pytest.param("process", "program", marks=pytest.mark.long),
        pytest.param("process", "by_difficulty", marks=pytest.mark.long),
        pytest.param("evaluate", "stream", marks=pytest.mark.long),
    ],
)
async def test_a_killed_run_is_resumed_to_what_it_would_have_been(mode: str, variant: str) -> None:
    async with scripted(mode, variant, DELAY, Random()) as killer:
        await killer.measure()
        await killer.kill_and_resume(2)
    assert killer.count.faults == []
    assert killer.count.kills + killer.count.too_late > 0
