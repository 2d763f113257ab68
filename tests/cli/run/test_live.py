"""The line of `run status` about the audit."""

from typing import Any

import pytest

from hermes_rl.cli.run.live import audit_text

AUDIT: dict[str, Any] = {"step": 12, "gap": 0.31, "gap_low": 0.2, "gap_high": 0.42, "rollouts": 16.0, "errors": 0.0}


@pytest.mark.parametrize(
    ("audit", "text"),
    [
        (None, ""),
        (AUDIT, "trained − audited reward +0.310 (95% +0.200 to +0.420), 16 best rollouts of step 12"),
        (
            AUDIT | {"gap_low": None, "errors": 2.0},
            "trained − audited reward +0.310, 16 best rollouts of step 12, 2 audits failed",
        ),
        (AUDIT | {"gap": None, "rollouts": 0.0, "errors": 3.0}, "no rollout of step 12, 3 audits failed"),
    ],
)
def test_the_audit_is_one_line(audit: dict[str, Any] | None, text: str) -> None:
    assert audit_text({"metrics": {"audit": audit}}) == text
