"""What records say: the figures, and each verdict with the next step."""

from dataclasses import replace
from typing import Any

import pytest

from hermes_rl.core.errors import Failure, FailureSource
from hermes_rl.core.trajectory import Group, Provenance, Rollout, StopReason, ToolUse
from hermes_rl.orchestration.inference_test.checks import (
    InferenceCheck,
    ModelVerdict,
    compute_checks,
    compute_metrics,
    merge_checks,
)

PROMPT = {"role": "user", "content": "say 1"}
CALL = ToolUse(1, "c", "terminal", '{"command": "true"}', "")


def rollout(score: float | None = 0.0, *, failure: Failure | None = None, **fields: Any) -> Rollout:
    given: dict[str, Any] = {
        "messages": [PROMPT, {"role": "assistant", "content": "1"}],
        "tool_uses": (CALL,),
        "metadata": {"prompt_length": 1},
        **fields,
    }
    if failure is None:
        given = {"score": score, "stop_reason": StopReason.NATURAL, **given}
    return Rollout(item_id="i", index=0, seed=0, failure=failure, **given)


def group(*rollouts: Rollout) -> Group:
    return Group(
        item_id="i", item={}, rollouts=rollouts, provenance=Provenance("trial", "", "m", {}), tools=("terminal",)
    )


def failed(whose: FailureSource, cause: str) -> Rollout:
    unanswered: dict[str, Any] = {"messages": [PROMPT], "tool_uses": ()}
    return rollout(failure=Failure(whose, cause, "what happened"), **unanswered)


def verdicts(*rollouts: Rollout) -> dict[str, InferenceCheck]:
    return compute_checks([group(*rollouts)], None, began=True)


GOOD = (rollout(0.0), rollout(1.0))


def test_all_is_well_when_tools_are_called_and_scores_differ() -> None:
    assert {check.verdict for check in verdicts(*GOOD).values()} == {ModelVerdict.PASS}


def test_figures_are_the_seeds_and_leave_out_what_has_no_score() -> None:
    told = compute_metrics([group(*GOOD, failed(FailureSource.ENDPOINT, "http_500")), group(rollout(0.0))])
    assert (told["steps_tested"], told["total_completions"], told["scored"]) == (2, 4, 3)
    assert (told["correct_completions"], told["accuracy"]) == (1, pytest.approx(1 / 3))
    assert (told["steps_with_correct"], told["step_success_rate"]) == (1, 0.5)
    assert told["failed_by_cause"] == {"endpoint/http_500": 1}


GARBLED = rollout(0.0, stop_reason=StopReason.UNPARSED_TOOL_CALL, tool_uses=())
UNKNOWN_TOOL = rollout(0.0, tool_uses=(CALL._replace(name="shell"),))
NO_JSON = rollout(0.0, tool_uses=(CALL._replace(arguments="{command"),))
SILENT = rollout(0.0, messages=[PROMPT, {"role": "assistant", "content": ""}], tool_uses=())
NO_CALLS = rollout(0.0, tool_uses=())
UNASKED = rollout(0.0, messages=[{"role": "system", "content": "s"}, {"role": "assistant", "content": "1"}])


@pytest.mark.parametrize(
    ("check", "bad", "verdict"),
    [
        ("prompt_construction", failed(FailureSource.ENVIRONMENT, "prompt"), ModelVerdict.FAIL),
        ("prompt_construction", UNASKED, ModelVerdict.FAIL),
        ("response_parsing", GARBLED, ModelVerdict.FAIL),
        ("response_parsing", UNKNOWN_TOOL, ModelVerdict.FAIL),
        ("response_parsing", NO_JSON, ModelVerdict.FAIL),
        ("response_parsing", SILENT, ModelVerdict.FAIL),
        ("response_parsing", failed(FailureSource.ENDPOINT, "bad_response"), ModelVerdict.FAIL),
        ("response_parsing", failed(FailureSource.ENDPOINT, "http_401"), ModelVerdict.UNKNOWN),
        ("response_parsing", NO_CALLS, ModelVerdict.UNKNOWN),
        ("scoring", failed(FailureSource.VERIFIER, "not_finite"), ModelVerdict.FAIL),
        ("scoring", failed(FailureSource.JUDGE, "no_verdict"), ModelVerdict.FAIL),
        ("scoring", failed(FailureSource.SANDBOX, "start"), ModelVerdict.UNKNOWN),
        ("scoring", rollout(0.0), ModelVerdict.UNKNOWN),
    ],
)
def test_each_fault_has_its_verdict_and_a_next_step(check: str, bad: Rollout, verdict: ModelVerdict) -> None:
    found = verdicts(bad, bad)[check]
    assert found.verdict is verdict
    assert found.why
    assert found.next


def test_a_slip_now_and_then_is_no_fault_of_the_parsing() -> None:
    assert verdicts(*GOOD * 10, GARBLED)["response_parsing"].verdict is ModelVerdict.PASS


def test_an_environment_that_did_not_come_up_has_failed_and_one_not_started_is_unknown() -> None:
    assert compute_checks([], "ValueError: no items", began=True)["environment_loads"].verdict is ModelVerdict.FAIL
    assert compute_checks([], None, began=True)["environment_loads"].verdict is ModelVerdict.FAIL
    assert compute_checks([], "no key", began=False)["environment_loads"].verdict is ModelVerdict.UNKNOWN


def test_over_all_models_a_failure_counts_first_and_then_what_was_shown() -> None:
    fail, ok, unseen = (
        InferenceCheck(verdict, "") for verdict in (ModelVerdict.FAIL, ModelVerdict.PASS, ModelVerdict.UNKNOWN)
    )
    told = merge_checks([{"a": ok, "b": unseen, "c": unseen}, {"a": fail, "b": ok, "c": unseen}])
    assert told == {"a": fail, "b": ok, "c": unseen}


def test_scores_that_differ_only_between_groups_are_a_spread() -> None:
    one, other = group(rollout(0.0)), replace(group(rollout(1.0)), item_id="j")
    assert compute_checks([one, other], None, began=True)["scoring"].verdict is ModelVerdict.PASS
