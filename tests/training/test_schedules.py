from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.training.config import Schedule, TrainerSettings
from hermes_rl.training.step import learning_rate


def rates(total_steps: int, **more: Any) -> list[float]:
    """Of every step, and of one more that no run takes."""
    settings = TrainerSettings(total_steps=total_steps, learning_rate=1.0, **more)
    return [learning_rate(settings, step) for step in range(total_steps + 1)]


def test_a_constant_rate_is_the_one_set() -> None:
    assert rates(3) == [1.0] * 4


def test_a_linear_rate_falls_to_zero_after_the_last_step() -> None:
    assert rates(4, lr_schedule=Schedule.LINEAR) == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])


def test_a_cosine_rate_falls_to_zero_after_the_last_step() -> None:
    assert rates(4, lr_schedule=Schedule.COSINE) == pytest.approx([1.0, 0.853553, 0.5, 0.146447, 0.0], abs=1e-6)


def test_a_rate_warms_up_from_zero() -> None:
    assert rates(8, warmup_steps=4)[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


def test_a_rate_falls_from_where_it_warmed_up_to() -> None:
    assert rates(6, warmup_steps=2, lr_schedule=Schedule.LINEAR) == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0])


def test_a_run_of_one_step_takes_it_at_full_rate() -> None:
    assert rates(1, lr_schedule=Schedule.COSINE)[0] == 1.0


@given(st.integers(1, 60), st.sampled_from(Schedule), st.data())
def test_no_step_of_a_run_is_of_size_zero(total: int, schedule: Schedule, data: st.DataObject) -> None:
    *steps, _ = rates(total, lr_schedule=schedule, warmup_steps=data.draw(st.integers(0, total - 1)))
    assert all(0 < rate <= 1 for rate in steps)


@given(st.sampled_from(Schedule), st.integers(0, 10**9))
def test_a_step_beyond_the_run_has_a_rate_too(schedule: Schedule, beyond: int) -> None:
    settings = TrainerSettings(total_steps=5, lr_schedule=schedule)
    assert 0 <= learning_rate(settings, 5 + beyond) <= settings.learning_rate
