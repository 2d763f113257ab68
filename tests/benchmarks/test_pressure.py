"""Both limits together, in simulated time: `auto` beside the best fixed number on engines of every shape."""

import pytest

from benchmarks.pressure_simulated import FIRST, GOAL, GROUP, MOST, REFUSED_GOAL, SHAPES, Simulation
from hermes_rl.rollout.concurrency import ConcurrencyConfig, rollout_limiter_config

# The best of the fixed numbers, as `python benchmarks/pressure_simulated.py` finds them.
BEST = dict.fromkeys(SHAPES, 64) | {"thrashes": 12}


@pytest.mark.parametrize("name", SHAPES)
def test_what_follows_the_engines_does_nearly_as_much_as_the_best_fixed_number(name: str) -> None:
    fixed = Simulation(SHAPES[name], BEST[name], 1).run()
    auto = Simulation(SHAPES[name], rollout_limiter_config(ConcurrencyConfig(GROUP, FIRST, FIRST, MOST)), 1).run()
    assert auto["answers_per_second"] >= (GOAL - 0.05) * fixed["answers_per_second"]
    assert auto["refused_per_answer"] <= REFUSED_GOAL
