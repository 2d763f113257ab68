"""How a run goes, for whoever follows it: its rewards step by step, and the rollouts that failed, by cause."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hermes_rl.runs.watching.live import known_run, run_file_of
from hermes_rl.runs.watching.measured import Measured, number, read_measured

FAILURES = "train/failures/"


@dataclass(frozen=True, slots=True)
class Pulse:
    """`rewards` of every step, the newest last; `failures` since the beginning."""

    rewards: tuple[float, ...]
    failures: Mapping[str, int]


def pulse(run_id: str) -> Pulse:
    places = known_run(run_id)
    return pulse_of(read_measured(places, run_file_of(places)))


def pulse_of(measured: Measured) -> Pulse:
    rewards = [number(row.get("reward/mean")) for row in measured.steps]
    failures: Counter[str] = Counter()
    for rows in measured.environments.values():
        for row in rows:
            failures.update(
                {
                    name.removeprefix(FAILURES): int(count)
                    for name, value in row.items()
                    if name.startswith(FAILURES) and (count := number(value))
                }
            )
    return Pulse(tuple(one for one in rewards if one is not None), failures)
