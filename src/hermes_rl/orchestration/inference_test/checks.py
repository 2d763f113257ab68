"""Evaluate the records of a test: the seed's metrics, and a verdict for each check.

Always true: an unscored rollout is in no mean; a verdict other than `pass` says what to do next; what was not observed
is `unknown`.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.errors import FailureSource
from hermes_rl.core.messages import tool_calls
from hermes_rl.core.trajectory import Group, Rollout, StopReason, ToolUse

# Share of the answered rollouts: models make occasional format errors even if the parser is right.
FORMAT_ERRORS_ALLOWED = 0.1
# Failure causes of an endpoint that did respond.
UNREADABLE = {"bad_response", "empty_choices"}
MAX_SHOWN = 300


class ModelVerdict(StrEnum):
    PASS = "pass"  # noqa: S105 (not a password)
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class InferenceCheck:
    verdict: ModelVerdict
    why: str
    next: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compute_metrics(groups: Sequence[Group]) -> dict[str, Any]:
    """The seed's metrics. As in the seed, a completion is correct when its score is above 0."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    scores = [score for group in groups for score in group.scores]
    correct = sum(score > 0 for score in scores)
    with_correct = sum(any(score > 0 for score in group.scores) for group in groups)
    causes = Counter(str(rollout.failure) for rollout in rollouts if rollout.failure is not None)
    return {
        "steps_tested": len(groups),
        "total_completions": len(rollouts),
        "scored": len(scores),
        "failed_by_cause": dict(causes.most_common()),
        "correct_completions": correct,
        "accuracy": correct / len(scores) if scores else None,
        "steps_with_correct": with_correct,
        "step_success_rate": with_correct / len(groups) if groups else None,
        "mean_score": statistics.fmean(scores) if scores else None,
        "prompt_tokens": sum(rollout.usage.prompt_tokens or 0 for rollout in rollouts),
        "completion_tokens": sum(rollout.usage.completion_tokens or 0 for rollout in rollouts),
    }


def compute_checks(groups: Sequence[Group], problem: str | None, *, began: bool) -> dict[str, InferenceCheck]:
    """The checks of one model. `problem` is why its process failed, `began` whether one was started."""
    return {
        "environment_loads": _loading_check(groups, problem, began=began),
        "prompt_construction": _prompt_check(groups),
        "response_parsing": _parsing_check(groups),
        "scoring": _scoring_check(groups),
    }


def merge_checks(of_models: Iterable[dict[str, InferenceCheck]]) -> dict[str, InferenceCheck]:
    """Each check over all models: it fails if it failed with any model, else passes if it passed with any."""
    by_name: dict[str, list[InferenceCheck]] = {}
    for checks in of_models:
        for name, check in checks.items():
            by_name.setdefault(name, []).append(check)
    order = (ModelVerdict.FAIL, ModelVerdict.PASS, ModelVerdict.UNKNOWN)
    return {name: min(found, key=lambda check: order.index(check.verdict)) for name, found in by_name.items()}


def _loading_check(groups: Sequence[Group], problem: str | None, *, began: bool) -> InferenceCheck:
    if groups:
        return InferenceCheck(ModelVerdict.PASS, f"it produced {len(groups)} groups")
    if not began:
        return InferenceCheck(ModelVerdict.UNKNOWN, f"it was not started: {problem}", "fix that and test again")
    if problem is None:
        return InferenceCheck(
            ModelVerdict.FAIL, "it ended without any groups", "check its items: train_items() or get_next_item()"
        )
    return InferenceCheck(ModelVerdict.FAIL, problem[:MAX_SHOWN], "fix that and test again; see log_file for details")


def _prompt_check(groups: Sequence[Group]) -> InferenceCheck:
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    if broken := _failed(rollouts, FailureSource.ENVIRONMENT):
        return InferenceCheck(
            ModelVerdict.FAIL,
            f"{len(broken)} of {len(rollouts)} rollouts: {_message(broken)}",
            "fix the method of the environment that it names (format_prompt, initial_messages, sandbox_spec)",
        )
    prompted = [rollout for rollout in rollouts if rollout.messages]
    empty = [rollout for rollout in prompted if not _has_prompt(rollout)]
    if empty:
        return InferenceCheck(
            ModelVerdict.FAIL,
            f"{len(empty)} of {len(prompted)} rollouts have an empty user message",
            "return the task as text from format_prompt",
        )
    if not prompted:
        return InferenceCheck(ModelVerdict.UNKNOWN, "no rollout reached its prompt", "see the other checks")
    return InferenceCheck(ModelVerdict.PASS, f"{len(prompted)} rollouts have a prompt")


def _parsing_check(groups: Sequence[Group]) -> InferenceCheck:
    tools = {tool for group in groups for tool in group.tools}
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    failed = _failed(rollouts, FailureSource.ENDPOINT)
    unreadable = [rollout for rollout in failed if rollout.failure and rollout.failure.cause in UNREADABLE]
    answered = [rollout for rollout in rollouts if _responses(rollout)]
    if not answered and not unreadable:
        why = f"no response from the model: {_message(failed)}" if failed else "no rollout has a response of the model"
        return InferenceCheck(ModelVerdict.UNKNOWN, why, "check the endpoint's address, its key and the model name")
    malformed = [rollout for group in groups for rollout in group.rollouts if _is_malformed(rollout, group.tools)]
    wrong, total = len(malformed) + len(unreadable), len(answered) + len(unreadable)
    if wrong > FORMAT_ERRORS_ALLOWED * total:
        example = _message(unreadable) if unreadable else _malformed_text(malformed[0])
        return InferenceCheck(
            ModelVerdict.FAIL,
            f"{wrong} of {total} rollouts have a tool call or response that could not be parsed, such as: {example}",
            "set tool_call_parser to the model's format, raise max_token_length, or test a model that knows the tools",
        )
    responses = [message for rollout in answered for message in _responses(rollout)]
    if not any(message.get("content") or message.get("tool_calls") for message in responses):
        return InferenceCheck(
            ModelVerdict.FAIL, "every response is empty", "check log_file and what the endpoint returns"
        )
    calls = sum(len(rollout.tool_uses) for rollout in rollouts)
    if tools and not calls:
        return InferenceCheck(
            ModelVerdict.UNKNOWN,
            f"the model responded in {len(answered)} rollouts, but never called a tool ({', '.join(sorted(tools))})",
            "test a larger model, mention the tools in the prompt, or check output_file for calls in another format",
        )
    errors = f"; {wrong} could not be parsed" if wrong else ""
    return InferenceCheck(
        ModelVerdict.PASS, f"the model responded in {len(answered)} rollouts, {calls} tool calls{errors}"
    )


def _scoring_check(groups: Sequence[Group]) -> InferenceCheck:
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    broken = [*_failed(rollouts, FailureSource.VERIFIER), *_failed(rollouts, FailureSource.JUDGE)]
    if broken:
        return InferenceCheck(
            ModelVerdict.FAIL,
            f"{len(broken)} of {len(rollouts)} rollouts: {_message(broken)}",
            "fix compute_reward to return a finite number for every response; `hermes-rl validate` tests it",
        )
    scores = [score for group in groups for score in group.scores]
    if not scores:
        failed = [rollout for rollout in rollouts if rollout.failure]
        why = f"no rollout was scored: {_message(failed)}" if failed else "no rollout was scored"
        return InferenceCheck(ModelVerdict.UNKNOWN, why, "see the other checks")
    if min(scores) == max(scores):
        return InferenceCheck(
            ModelVerdict.UNKNOWN,
            f"all {len(scores)} scores are {scores[0]:g}: valid, but without a learning signal",
            "test a stronger or weaker model or other items; `hermes-rl validate` shows the oracle's score",
        )
    return InferenceCheck(ModelVerdict.PASS, f"{len(scores)} finite scores from {min(scores):g} to {max(scores):g}")


def _failed(rollouts: Iterable[Rollout], source: FailureSource) -> list[Rollout]:
    return [rollout for rollout in rollouts if rollout.failure is not None and rollout.failure.whose is source]


def _message(failed: Sequence[Rollout]) -> str:
    failure = failed[0].failure
    return f"{failure}: {failure.message}"[:MAX_SHOWN] if failure else ""


def _prompt_length(rollout: Rollout) -> int:
    return int(rollout.metadata.get("prompt_length", 0))


def _has_prompt(rollout: Rollout) -> bool:
    prompt = rollout.messages[: _prompt_length(rollout) or 1]
    return any(message["role"] == "user" and str(message.get("content") or "").strip() for message in prompt)


def _responses(rollout: Rollout) -> list[dict[str, Any]]:
    return [message for message in rollout.messages[_prompt_length(rollout) :] if message["role"] == "assistant"]


def _is_malformed(rollout: Rollout, tools: Sequence[str]) -> bool:
    if rollout.stop_reason is StopReason.UNPARSED_TOOL_CALL:
        return True
    return any(use.name not in tools or not _is_object(use) for use in rollout.tool_uses)


def _is_object(use: ToolUse) -> bool:
    try:
        return not use.arguments.strip() or isinstance(fast_json.loads(use.arguments), dict)
    except ValueError:
        return False


def _malformed_text(rollout: Rollout) -> str:
    for message in reversed(_responses(rollout)):
        if calls := tool_calls([message]):
            return f"{calls[0].name}({calls[0].arguments})"[:MAX_SHOWN]
        if text := str(message.get("content") or ""):
            return text[-MAX_SHOWN:]
    return "nothing"
