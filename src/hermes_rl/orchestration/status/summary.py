"""A short summary of a run for live display: the reward of every step, and failed rollouts by cause."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hermes_rl.orchestration.status.inspect import existing_run, find_run_file
from hermes_rl.orchestration.status.metrics import RunMetrics, finite_number, read_run_metrics

FAILURES = "train/failures/"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """`rewards` of every step, oldest first; `failures` since the start."""

    rewards: tuple[float, ...]
    failures: Mapping[str, int]


def run_summary(run_id: str) -> RunSummary:
    paths = existing_run(run_id)
    return summarize_metrics(read_run_metrics(paths, find_run_file(paths)))


def summarize_metrics(metrics: RunMetrics) -> RunSummary:
    rewards = [finite_number(row.get("reward/mean")) for row in metrics.steps]
    failures: Counter[str] = Counter()
    for rows in metrics.environments.values():
        for row in rows:
            failures.update(
                {
                    name.removeprefix(FAILURES): int(count)
                    for name, value in row.items()
                    if name.startswith(FAILURES) and (count := finite_number(value))
                }
            )
    return RunSummary(tuple(reward for reward in rewards if reward is not None), failures)
