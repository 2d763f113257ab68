from hermes_rl.orchestration.status.metrics import RunMetrics
from hermes_rl.orchestration.status.summary import summarize_metrics


def test_rewards_come_in_the_order_of_steps_and_failures_add_up() -> None:
    steps = ({"step": 1, "reward/mean": 0.25}, {"step": 2}, {"step": 3, "reward/mean": 0.5})
    rows = ({"train/failures/sandbox/start": 2}, {"train/failures/sandbox/start": 1, "train/failures/tool/hang": 4})
    beat = summarize_metrics(RunMetrics(steps, {"words": rows}, ()))
    assert beat.rewards == (0.25, 0.5)
    assert beat.failures == {"sandbox/start": 3, "tool/hang": 4}
