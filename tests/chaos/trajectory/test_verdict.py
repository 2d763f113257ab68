"""Every breach the referee is there for, in a history that has it and nothing else."""

from dataclasses import replace

import pytest

from tests.chaos.trajectory.verdict import Evidence, breaches

KEPT = Evidence(
    finished={"p0": [0, 1], "p1": [0]},
    answered={"p0": [0, 1], "p1": [0]},
    trained=[(7, ["p0/0", "p1/0"]), (8, ["p0/1"])],
    versions=[1, 2],
    stored=["p0/0", "p1/0", "p0/1"],
    outcomes=[("p0/0", "trained", 7), ("p1/0", "trained", 7), ("p0/1", "trained", 8)],
    store_version=2,
)


def test_a_history_that_kept_the_promise_has_no_breach() -> None:
    assert breaches(KEPT) == []


def test_a_group_answered_twice_is_no_breach() -> None:
    assert breaches(replace(KEPT, answered={"p0": [0, 0, 1], "p1": [0]})) == []


@pytest.mark.parametrize(
    ("history", "breach"),
    [
        (replace(KEPT, stored=KEPT.stored[:2]), "answered but not in the store: p0/1"),
        (replace(KEPT, outcomes=KEPT.outcomes[:2]), "answered but not acknowledged: p0/1"),
        (replace(KEPT, trained=KEPT.trained[:1]), "answered but never trained on: p0/1"),
        (replace(KEPT, finished={"p1": [0, 1]}), "finished but not in the store: p1/1"),
        (replace(KEPT, trained=[*KEPT.trained, (8, ["p0/1"])]), "trained on more than once: p0/1"),
        (replace(KEPT, outcomes=[*KEPT.outcomes, ("p0/1", "trained", 9)]), "with more than one outcome: p0/1"),
        (replace(KEPT, stored=[*KEPT.stored, "p0/0"]), "in the store more than once: p0/0"),
        (
            replace(KEPT, trained=[(7, ["p0/0", "p1/0"]), (9, ["p0/1"])]),
            "trained on in one batch and acknowledged in another: p0/1",
        ),
        (replace(KEPT, outcomes=[*KEPT.outcomes[:2], ("p0/1", "dropped", None)]), "dropped: p0/1"),
        (replace(KEPT, answered={"p0": [0, 1]}), "in the store but posted by nobody: p1/0"),
        (replace(KEPT, changed=["p1/0"]), "changed on its way: p1/0"),
        (replace(KEPT, store_version=1), "the policy's version is 1, and 2 was set last"),
        (replace(KEPT, trained=[(7, ["p0/1", "p1/0"]), (8, ["p0/0"])]), "out of its order: p0/0 after 1"),
        (replace(KEPT, trained=[(7, ["p0/1", "p1/0"])]), "left out: p0/0"),
        (replace(KEPT, waiting=3), "3 groups still wait and 0 batches are on loan after the end"),
        (replace(KEPT, on_loan=1), "0 groups still wait and 1 batches are on loan after the end"),
        (replace(KEPT, left_in_spools=2), "2 groups are left in spools"),
    ],
)
def test_a_breach_is_named(history: Evidence, breach: str) -> None:
    assert breach in breaches(history)
