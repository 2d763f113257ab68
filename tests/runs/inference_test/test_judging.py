"""What records say: the figures, and each verdict with the next step."""

from dataclasses import replace
from typing import Any

import pytest

from hermes_rl.errors import Failure, Whose
from hermes_rl.runs.inference_test.judging import Check, Verdict, checks, figures, together
from hermes_rl.trajectory import Group, Provenance, Rollout, StopReason, ToolUse

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


def failed(whose: Whose, cause: str) -> Rollout:
    unanswered: dict[str, Any] = {"messages": [PROMPT], "tool_uses": ()}
    return rollout(failure=Failure(whose, cause, "what happened"), **unanswered)


def verdicts(*rollouts: Rollout) -> dict[str, Check]:
    return checks([group(*rollouts)], None, began=True)


GOOD = (rollout(0.0), rollout(1.0))


def test_all_is_well_when_tools_are_called_and_scores_differ() -> None:
    assert {check.verdict for check in verdicts(*GOOD).values()} == {Verdict.PASS}


def test_figures_are_the_seeds_and_leave_out_what_has_no_score() -> None:
    told = figures([group(*GOOD, failed(Whose.ENDPOINT, "http_500")), group(rollout(0.0))])
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
        ("prompt_construction", failed(Whose.ENVIRONMENT, "prompt"), Verdict.FAIL),
        ("prompt_construction", UNASKED, Verdict.FAIL),
        ("response_parsing", GARBLED, Verdict.FAIL),
        ("response_parsing", UNKNOWN_TOOL, Verdict.FAIL),
        ("response_parsing", NO_JSON, Verdict.FAIL),
        ("response_parsing", SILENT, Verdict.FAIL),
        ("response_parsing", failed(Whose.ENDPOINT, "bad_response"), Verdict.FAIL),
        ("response_parsing", failed(Whose.ENDPOINT, "http_401"), Verdict.UNKNOWN),
        ("response_parsing", NO_CALLS, Verdict.UNKNOWN),
        ("scoring", failed(Whose.VERIFIER, "not_finite"), Verdict.FAIL),
        ("scoring", failed(Whose.JUDGE, "no_verdict"), Verdict.FAIL),
        ("scoring", failed(Whose.SANDBOX, "start"), Verdict.UNKNOWN),
        ("scoring", rollout(0.0), Verdict.UNKNOWN),
    ],
)
def test_each_fault_has_its_verdict_and_a_next_step(check: str, bad: Rollout, verdict: Verdict) -> None:
    found = verdicts(bad, bad)[check]
    assert found.verdict is verdict
    assert found.why
    assert found.next


def test_a_slip_now_and_then_is_no_fault_of_the_parsing() -> None:
    assert verdicts(*GOOD * 10, GARBLED)["response_parsing"].verdict is Verdict.PASS


def test_an_environment_that_did_not_come_up_has_failed_and_one_not_started_is_unknown() -> None:
    assert checks([], "ValueError: no items", began=True)["environment_loads"].verdict is Verdict.FAIL
    assert checks([], None, began=True)["environment_loads"].verdict is Verdict.FAIL
    assert checks([], "no key", began=False)["environment_loads"].verdict is Verdict.UNKNOWN


def test_over_all_models_a_failure_counts_first_and_then_what_was_shown() -> None:
    fail, ok, unseen = (Check(verdict, "") for verdict in (Verdict.FAIL, Verdict.PASS, Verdict.UNKNOWN))
    told = together([{"a": ok, "b": unseen, "c": unseen}, {"a": fail, "b": ok, "c": unseen}])
    assert told == {"a": fail, "b": ok, "c": unseen}


def test_scores_that_differ_only_between_groups_are_a_spread() -> None:
    one, other = group(rollout(0.0)), replace(group(rollout(1.0)), item_id="j")
    assert checks([one, other], None, began=True)["scoring"].verdict is Verdict.PASS
