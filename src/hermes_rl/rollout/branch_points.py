"""Where a finished rollout can be branched, and which of these turns to prefer.

Always true: at a turn that can be branched, the ids of the prompt that the model was sent are in the record, with every
earlier answer in them; and a replay brings back all that the earlier calls left behind.
"""

from collections.abc import Collection, Sequence
from itertools import pairwise, takewhile
from random import Random
from statistics import fmean
from typing import Any

from hermes_rl.agent.result import AgentResult
from hermes_rl.core import fast_json
from hermes_rl.core.trajectory import Rollout, Span, Timing, ToolUse, Usage
from hermes_rl.inference.tokens.recorder import Opening, TurnSpan
from hermes_rl.rollout.rebuild import past_turns


def branchable_turns(rollout: Rollout, not_replayed: Collection[str]) -> list[int]:
    """From the second on, counted from 1. `not_replayed` names the tools whose effects a replay does not bring back."""
    lost = [use.turn for use in rollout.tool_uses if use.name in not_replayed]
    return list(range(2, min([len(_spans(rollout)), *lost]) + 1)) if rollout.scored else []


def past_of(rollout: Rollout, turn: int) -> AgentResult:
    """The work before this turn, with what it used of the tokens and of the time for tools."""
    past = past_turns(rollout, turn)
    spans = _spans(rollout)[: turn - 1]
    past.usage = Usage(sum(begin for begin, _ in spans), sum(end - begin for begin, end in spans))
    past.timings = _slowest_calls(rollout, turn)
    return past


def opening_of(rollout: Rollout, past: AgentResult) -> Opening:
    """The prompt of the turn after `past`, id by id."""
    spans = _spans(rollout)
    answers = (
        index
        for index, message in enumerate(past.messages)
        if index >= past.prompt_length and message.get("role") == "assistant"
    )
    turns = [TurnSpan(begin, end, index + 1) for (begin, end), index in zip(spans, answers, strict=False)]
    begin, _ = spans[past.turns_used]
    sequence = rollout.sequences[0]
    return Opening(sequence.tokens[:begin], past.messages, turns, sequence.sampling)


def turns_to_branch_at(rule: str, rollout: Rollout, turns: Sequence[int], rng: Random) -> list[int]:
    """Those of `turns` that the rule names, the best first.

    `uniform` names all of them in a random order. `highest_entropy` begins where the sampled tokens were least likely:
    minus their mean logprob estimates the policy's entropy there. `first_failed_call` names only turns whose calls
    failed.
    """
    if rule == "highest_entropy":
        return sorted(turns, key=lambda turn: _mean_logprob(rollout, turn))
    if rule == "first_failed_call":
        failed = {use.turn for use in rollout.tool_uses if call_failed(use)}
        return [turn for turn in turns if turn in failed]
    return rng.sample(turns, len(turns))


def call_failed(use: ToolUse) -> bool:
    """Whether a call was refused or raised, or says so itself: an exit code that is not 0, or an error."""
    if use.error is not None:
        return True
    try:
        result: Any = fast_json.loads(use.result)
    except ValueError:
        return False
    return isinstance(result, dict) and bool(result.get("exit_code") or result.get("error"))


def _spans(rollout: Rollout) -> list[tuple[int, int]]:
    """The sampled tokens of the first answers, [begin, end), as far as they are in one sequence without a gap."""
    if not rollout.sequences:
        return []
    sequence = rollout.sequences[0]
    calls = [call.begin for _, call in takewhile(lambda one: one[0] == one[1].call, enumerate(sequence.calls))]
    ends = [*(call.begin for call in sequence.calls[1:]), len(sequence.tokens)][: len(calls)]
    return [(begin, begin + sum(sequence.mask[begin:end])) for begin, end in zip(calls, ends, strict=True)]


def _mean_logprob(rollout: Rollout, turn: int) -> float:
    begin, end = _spans(rollout)[turn - 1]
    return fmean(value for value in rollout.sequences[0].logprobs[begin:end] if value is not None)


def _slowest_calls(rollout: Rollout, turn: int) -> list[Timing]:
    """The longest tool call of each turn before this one: the calls of a turn run at once."""
    asked = [timing.start for timing in rollout.timings if timing.span is Span.MODEL]
    tools = [timing for timing in rollout.timings if timing.span is Span.TOOL]
    during = ([one for one in tools if begin <= one.start < end] for begin, end in pairwise(asked[:turn]))
    return [max(calls, key=lambda one: one.seconds) for calls in during if calls]
