"""What counts as work in progress, for each victim."""

import pytest

from tests.chaos.stack.held import Work, held_by
from tests.chaos.stack.schedule import KINDS

BUSY = Work(rollouts=8, queued=2, batches=1, requests=3, sandboxes=4, commands=4)


@pytest.mark.parametrize("target", sorted({kind.target for kind in KINDS}))
def test_of_an_idle_run_nobody_holds_anything(target: str) -> None:
    assert held_by(target, Work()) is None


@pytest.mark.parametrize("target", sorted({kind.target for kind in KINDS}))
def test_of_a_busy_run_everybody_holds_something(target: str) -> None:
    assert held_by(target, BUSY)


@pytest.mark.parametrize(
    ("target", "work", "held"),
    [
        ("trainer", Work(batches=1), "a batch on loan"),
        ("keeper trainer", Work(batches=1), "a batch on loan"),
        ("trainer", Work(queued=3), None),
        ("engine worker", Work(requests=2), "2 requests"),
        ("engine worker", Work(batches=1), None),
        ("sandbox", Work(sandboxes=2), None),
        ("sandbox", Work(sandboxes=2, commands=1), "a command"),
        ("api", Work(queued=3), "3 groups"),
        # The books say that rollouts run, and there is nothing of them: they are those of a life that has ended.
        ("env", Work(rollouts=8), None),
    ],
)
def test_what_a_process_holds(target: str, work: Work, held: str | None) -> None:
    assert held_by(target, work) == held
