from hermes_rl.runs.watching.measured import Measured
from hermes_rl.runs.watching.pulse import pulse_of


def test_rewards_come_in_the_order_of_steps_and_failures_add_up() -> None:
    steps = ({"step": 1, "reward/mean": 0.25}, {"step": 2}, {"step": 3, "reward/mean": 0.5})
    rows = ({"train/failures/sandbox/start": 2}, {"train/failures/sandbox/start": 1, "train/failures/tool/hang": 4})
    beat = pulse_of(Measured(steps, {"words": rows}, ()))
    assert beat.rewards == (0.25, 0.5)
    assert beat.failures == {"sandbox/start": 3, "tool/hang": 4}
