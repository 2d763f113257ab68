"""What the records of a test say: the seed's figures, and a verdict for each thing that a test is to show.

Always true: a rollout without a score enters no mean; a verdict that is not `pass` says what to do next; what was not
seen is `unknown`, neither good nor bad.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from hermes_rl import jsontext
from hermes_rl.errors import Whose
from hermes_rl.messages import tool_calls
from hermes_rl.trajectory import Group, Rollout, StopReason, ToolUse

# Of the rollouts that the model answered: a slip of the model now and then is no fault of the parsing.
FORMAT_ERRORS_ALLOWED = 0.1
# Causes of failures of an endpoint that answered.
UNREADABLE = {"bad_response", "empty_choices"}
SHOWN = 300


class Verdict(StrEnum):
    PASS = "pass"  # noqa: S105 (no password)
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    verdict: Verdict
    why: str
    next: str | None = None

    def told(self) -> dict[str, Any]:
        return asdict(self)


def figures(groups: Sequence[Group]) -> dict[str, Any]:
    """The seed's numbers; a completion is correct when its score is above 0, as there."""
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


def checks(groups: Sequence[Group], problem: str | None, *, began: bool) -> dict[str, Check]:
    """The verdicts on one model's records. `problem` is why its process failed, `began` whether there was one."""
    return {
        "environment_loads": _loads(groups, problem, began=began),
        "prompt_construction": _prompts(groups),
        "response_parsing": _parsing(groups),
        "scoring": _scoring(groups),
    }


def together(of_models: Iterable[dict[str, Check]]) -> dict[str, Check]:
    """One verdict for each check over all models: what failed with one has failed, what one showed is shown."""
    by_name: dict[str, list[Check]] = {}
    for one in of_models:
        for name, check in one.items():
            by_name.setdefault(name, []).append(check)
    order = (Verdict.FAIL, Verdict.PASS, Verdict.UNKNOWN)
    return {name: min(found, key=lambda check: order.index(check.verdict)) for name, found in by_name.items()}


def _loads(groups: Sequence[Group], problem: str | None, *, began: bool) -> Check:
    if groups:
        return Check(Verdict.PASS, f"it made {len(groups)} groups")
    if not began:
        return Check(Verdict.UNKNOWN, f"it was not started: {problem}", "mend that and test again")
    if problem is None:
        return Check(
            Verdict.FAIL, "it ended without a single group", "look at its items: train_items() or get_next_item()"
        )
    return Check(Verdict.FAIL, problem[:SHOWN], "mend that and test again; log_file has the whole of it")


def _prompts(groups: Sequence[Group]) -> Check:
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    if broken := _failed(rollouts, Whose.ENVIRONMENT):
        return Check(
            Verdict.FAIL,
            f"{len(broken)} of {len(rollouts)} rollouts: {_message(broken)}",
            "mend the environment's own code that it names (format_prompt, initial_messages, sandbox_spec)",
        )
    asked = [rollout for rollout in rollouts if rollout.messages]
    empty = [rollout for rollout in asked if not _has_a_prompt(rollout)]
    if empty:
        return Check(
            Verdict.FAIL,
            f"{len(empty)} of {len(asked)} rollouts began without a word from the user",
            "let format_prompt return the task as text",
        )
    if not asked:
        return Check(Verdict.UNKNOWN, "no rollout came as far as its prompt", "see the other checks")
    return Check(Verdict.PASS, f"{len(asked)} rollouts began with a prompt")


def _parsing(groups: Sequence[Group]) -> Check:
    tools = {tool for group in groups for tool in group.tools}
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    unreadable = [one for one in _failed(rollouts, Whose.ENDPOINT) if one.failure and one.failure.cause in UNREADABLE]
    answered = [rollout for rollout in rollouts if _answers(rollout)]
    if not answered and not unreadable:
        failed = _failed(rollouts, Whose.ENDPOINT)
        why = f"the model answered nothing: {_message(failed)}" if failed else "no rollout has an answer of the model"
        return Check(Verdict.UNKNOWN, why, "check the endpoint: its address, its key, the model's name")
    garbled = [one for group in groups for one in group.rollouts if _is_garbled(one, group.tools)]
    wrong, seen = len(garbled) + len(unreadable), len(answered) + len(unreadable)
    if wrong > FORMAT_ERRORS_ALLOWED * seen:
        example = _message(unreadable) if unreadable else _garbled_text(garbled[0])
        return Check(
            Verdict.FAIL,
            f"{wrong} of {seen} answered rollouts hold a tool call or an answer that could not be read, as: {example}",
            "set tool_call_parser to the model's format, raise max_token_length, or test a model that knows the tools",
        )
    if not any(message.get("content") or message.get("tool_calls") for one in answered for message in _answers(one)):
        return Check(Verdict.FAIL, "every answer is empty", "look at log_file and at what the endpoint sends")
    calls = sum(len(rollout.tool_uses) for rollout in rollouts)
    if tools and not calls:
        return Check(
            Verdict.UNKNOWN,
            f"{len(answered)} rollouts were answered and none called a tool of {', '.join(sorted(tools))}",
            "test a larger model, ask for the tools in the prompt, or see in output_file whether calls look different",
        )
    slips = f"; {wrong} could not be read" if wrong else ""
    return Check(Verdict.PASS, f"{len(answered)} rollouts were answered, with {calls} tool calls{slips}")


def _scoring(groups: Sequence[Group]) -> Check:
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    broken = [*_failed(rollouts, Whose.VERIFIER), *_failed(rollouts, Whose.JUDGE)]
    if broken:
        return Check(
            Verdict.FAIL,
            f"{len(broken)} of {len(rollouts)} rollouts: {_message(broken)}",
            "mend compute_reward: it returns a finite number for every answer; `hermes-rl validate` tries it for you",
        )
    scores = [score for group in groups for score in group.scores]
    if not scores:
        failed = [rollout for rollout in rollouts if rollout.failure]
        why = f"no rollout was scored: {_message(failed)}" if failed else "no rollout was scored"
        return Check(Verdict.UNKNOWN, why, "see the other checks")
    if min(scores) == max(scores):
        return Check(
            Verdict.UNKNOWN,
            f"all {len(scores)} scores are {scores[0]:g}: valid, and nothing to learn from",
            "test a stronger or weaker model or other items; `hermes-rl validate` shows what an oracle gets",
        )
    return Check(Verdict.PASS, f"{len(scores)} finite scores from {min(scores):g} to {max(scores):g}")


def _failed(rollouts: Iterable[Rollout], whose: Whose) -> list[Rollout]:
    return [rollout for rollout in rollouts if rollout.failure is not None and rollout.failure.whose is whose]


def _message(failed: Sequence[Rollout]) -> str:
    failure = failed[0].failure
    return f"{failure}: {failure.message}"[:SHOWN] if failure else ""


def _prompt_length(rollout: Rollout) -> int:
    return int(rollout.metadata.get("prompt_length", 0))


def _has_a_prompt(rollout: Rollout) -> bool:
    prompt = rollout.messages[: _prompt_length(rollout) or 1]
    return any(message["role"] == "user" and str(message.get("content") or "").strip() for message in prompt)


def _answers(rollout: Rollout) -> list[dict[str, Any]]:
    return [message for message in rollout.messages[_prompt_length(rollout) :] if message["role"] == "assistant"]


def _is_garbled(rollout: Rollout, tools: Sequence[str]) -> bool:
    if rollout.stop_reason is StopReason.UNPARSED_TOOL_CALL:
        return True
    return any(use.name not in tools or not _is_object(use) for use in rollout.tool_uses)


def _is_object(use: ToolUse) -> bool:
    try:
        return not use.arguments.strip() or isinstance(jsontext.loads(use.arguments), dict)
    except ValueError:
        return False


def _garbled_text(rollout: Rollout) -> str:
    for message in reversed(_answers(rollout)):
        if calls := tool_calls([message]):
            return f"{calls[0].name}({calls[0].arguments})"[:SHOWN]
        if text := str(message.get("content") or ""):
            return text[-SHOWN:]
    return "nothing"
