"""A small, seeded run of benchmarks/parser_fuzz.py, which measures at full size."""

import pytest

from tests.parsers.fuzz import CPU_GOAL_MS, RATIO_GOAL, Findings, climb, fuzz
from tests.support.long_suites import in_the_gate

# The benchmark measures times; CI runs on a shared machine and only checks that nothing explodes.
SLACK = 4


def test_fuzzed_inputs_raise_nothing_and_cost_little() -> None:
    found = Findings()
    fuzz(13_000, seed=1, found=found)
    assert not found.faults
    assert found.large_inputs >= 13
    assert found.worst_ms < CPU_GOAL_MS * SLACK, found.worst_input


# A few shapes of each format: one in 127 takes a minute alone, and several on a busy machine.
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("every", in_the_gate([2039, 127], 1))
def test_time_is_linear_in_the_length_of_the_text(every: int) -> None:
    found = Findings()
    climb(found, every=every)
    assert not found.faults
    assert found.worst_ratio < RATIO_GOAL * SLACK, found.worst_shape
