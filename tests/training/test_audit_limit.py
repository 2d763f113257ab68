"""A run ends when the audit gap is surely above its limit for some steps in a row."""

import pytest

from hermes_rl.training.audit_limit import AuditLimit
from hermes_rl.training.config import TrainerSettings


def metrics(low: float | None) -> dict[str, float]:
    return {} if low is None else {"audit/gap": low + 0.25, "audit/gap_low": low}


def first_reached(*lows: float | None, steps: int = 2) -> int | None:
    limit = AuditLimit(0.1, steps)
    return next((step for step, low in enumerate(lows, 1) if limit.reached(step, metrics(low))), None)


def test_only_steps_in_a_row_above_the_limit_end_the_run() -> None:
    assert first_reached(0.2, 0.05, 0.2, 0.2) == 4
    assert first_reached(0.1, 0.1, 0.1) is None
    assert first_reached(0.2, steps=1) == 1


def test_a_step_without_audits_neither_counts_nor_starts_over() -> None:
    assert first_reached(0.2, None, None, 0.2) == 4


def test_a_repeated_step_counts_once() -> None:
    limit = AuditLimit(0.1, 3)
    assert [limit.reached(step, metrics(0.2)) is None for step in (4, 5, 4, 5)] == [True, True, True, True]
    assert limit.reached(6, metrics(0.2))


def test_the_reason_has_the_gap_and_what_to_do() -> None:
    reason = AuditLimit(0.1, 1).reached(7, metrics(0.25))
    assert reason is not None
    assert "audit gap +0.500 at step 7, at least +0.250 with 95% confidence" in reason
    assert "max_audit_gap 0.1 for 1 steps" in reason


def test_steps_without_a_limit_are_refused() -> None:
    with pytest.raises(ValueError, match="audit_gap_steps needs max_audit_gap"):
        TrainerSettings(audit_gap_steps=5)
