"""Every breach that the verdict is there for, in a history that has it and nothing else."""

from dataclasses import fields, replace
from typing import Any

import pytest

from tests.chaos.stack.verdict import Evidence, Scored, Verdict, judged

KEPT = Evidence(
    steps=2,
    lineage_steps=[0, 1, 2],
    draws=[0, 1, 2, 3, 4],
    seen=[0, 2, 1, 3, 4, 5],
    in_spool=[5],
    cursor=5,
    trainable=[1, 2, 3, 4],
    queued=[4],
    outcomes={1: "trained", 2: "trained", 3: "trained", 5: "dropped"},
    batches={7: "acknowledged", 8: "acknowledged", 9: "released"},
    batch_groups=[(7, 1), (7, 2), (8, 3), (9, 3)],
    learned=[7, 8],
    rollouts=[Scored("g/0", 0.5, None, 0.5), Scored("g/1", None, "sandbox", None), Scored("g/2", 0.0, None, 0.0)],
)


def test_a_history_that_kept_the_promises_has_no_breach() -> None:
    assert judged(KEPT).breaches == []


@pytest.mark.parametrize(
    ("promise", "change", "words"),
    [
        ("incomplete", {"phase": "failed"}, "the run is failed"),
        ("incomplete", {"attempts": 2}, "begun 2 times"),
        ("incomplete", {"lineage_steps": [0, 2]}, "the steps are not 0 to 2"),
        ("incomplete", {"exported": False}, "the weights are not there"),
        ("lost", {"in_spool": []}, "finished, and nowhere 5"),
        ("lost", {"refused": [6]}, "refused by the API 6"),
        ("lost", {"cursor": 6}, "below the cursor, and not in the store 5"),
        ("lost", {"queued": []}, "with no outcome, and not queued 4"),
        ("lost", {"learned": [7]}, "acknowledged, and not learned from: batch 8"),
        ("lost", {"outcomes": KEPT.outcomes | {4: "trained"}}, "said to be trained on, and in no batch 4"),
        ("doubled", {"draws": [*KEPT.draws, 3]}, "in the store more than once: draw 3"),
        ("doubled", {"learned": [7, 8, 8]}, "learned from more than once: batch 8"),
        ("doubled", {"batch_groups": [*KEPT.batch_groups, (8, 1)]}, "learned from in two batches: group 1"),
        ("doubled", {"learned": [7, 8, 9], "batch_groups": KEPT.batch_groups[:3]}, "and not acknowledged: batch 9"),
        ("doubled", {"queued": [4, 3]}, "trained on, and still queued 3"),
        ("leaked", {"processes": {12: "sleep 600"}}, "process 12 lives: sleep 600"),
        ("leaked", {"overstayed": ["of process 30"]}, "sandbox of process 30 outlived its environment"),
        ("leaked", {"ledgers": ["hermes-rl-1"]}, "sandbox hermes-rl-1 is still in a ledger"),
        ("leaked", {"control_groups": ["pids/hermes-rl-1"]}, "control group pids/hermes-rl-1 is left"),
        ("scored_faults", {"rollouts": [Scored("g/0", 0.0, None, 0.5)]}, "g/0 is scored 0.0"),
        ("scored_faults", {"rollouts": [Scored("g/0", 0.0, None, None)]}, "g/0 is scored 0.0"),
        ("scored_faults", {"rollouts": [Scored("g/0", 0.5, "sandbox", 0.5)]}, "has a score and a failure (sandbox)"),
    ],
)
def test_a_breach_is_named_under_its_promise(promise: str, change: dict[str, Any], words: str) -> None:
    verdict = judged(replace(KEPT, **change))
    assert any(words in text for text in getattr(verdict, promise))
    others = [field.name for field in fields(Verdict) if field.name != promise]
    assert [text for name in others for text in getattr(verdict, name)] == []
