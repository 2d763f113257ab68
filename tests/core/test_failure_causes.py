"""Every failure cause says whether the policy can cause it."""

import pytest

from hermes_rl.core.errors import Failure, FailureSource
from hermes_rl.core.failure_causes import CAUSES, Evidence, evidence_for
from tests.docs.causes import produced


def failure(name: str) -> Failure:
    whose, cause = name.split("/")
    return Failure(FailureSource(whose), cause, "")


@pytest.mark.parametrize("cause", sorted(produced()))
def test_every_cause_that_the_code_produces_is_in_the_table(cause: str) -> None:
    assert cause in CAUSES


def test_the_table_has_no_cause_that_the_code_does_not_produce() -> None:
    prefixes = tuple(cause.removesuffix("…") for cause in produced() if cause.endswith("…"))
    assert [cause for cause in CAUSES if cause not in produced() and not cause.startswith(prefixes)] == []


@pytest.mark.parametrize(
    ("name", "evidence"),
    [
        ("endpoint/http_503", Evidence.NEVER),
        ("endpoint/http_400", Evidence.ALWAYS),
        ("tool/http_502", Evidence.ALWAYS),
        ("verifier/sandbox_start", Evidence.NEVER),
        ("verifier/sandbox_died", Evidence.CONTROL),
        ("verifier/of_an_environment", Evidence.CONTROL),
        ("sandbox/of_a_plugin", Evidence.HOST),
        ("tool/of_a_plugin", Evidence.NEVER),
    ],
)
def test_a_cause_known_only_at_run_time_has_an_answer_too(name: str, evidence: Evidence) -> None:
    assert evidence_for(failure(name)) is evidence
