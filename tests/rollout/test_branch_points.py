"""At which turns a recorded rollout can be branched, and which of them each rule prefers."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from hermes_rl.core.trajectory import Rollout, Span, Timing, ToolUse, Usage
from hermes_rl.rollout.branch_points import branchable_turns, call_failed, opening_of, past_of, turns_to_branch_at
from tests.training.recorded_groups import rollout, sequence


def use(turn: int, name: str = "terminal", result: str = "", error: str | None = None) -> ToolUse:
    return ToolUse(turn, f"call{turn}", name, "{}", result, error)


def messages(turns: int) -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for turn in range(turns):
        asked += [{"role": "assistant", "content": f"{turn}"}, {"role": "tool", "content": "ok"}]
    return asked


def recorded(**more: Any) -> Rollout:
    """Three answers of one, two and three tokens after a prompt of two."""
    own = sequence("..#.##.###", calls=range(3))
    return rollout(1.0, own, **{"messages": messages(3), "metadata": {"prompt_length": 1}} | more)


def test_every_turn_but_the_first_can_be_branched() -> None:
    assert branchable_turns(recorded(), ()) == [2, 3]


def test_a_rollout_without_a_score_cannot() -> None:
    assert branchable_turns(rollout(None, sequence("..#.##", calls=range(2))), ()) == []


def test_a_rollout_without_tokens_cannot() -> None:
    assert branchable_turns(rollout(1.0), ()) == []


def test_turns_after_the_first_sequence_cannot() -> None:
    """The context was compacted before the third answer."""
    two = rollout(1.0, sequence("..#.##", calls=range(2)), sequence("..###", calls=(2,)))
    assert branchable_turns(two, ()) == [2]


def test_turns_after_an_answer_that_is_not_in_the_sequence_cannot() -> None:
    assert branchable_turns(rollout(1.0, sequence("..#.##.###", calls=(0, 2, 3))), ()) == []
    assert branchable_turns(rollout(1.0, sequence("..#.##", calls=(1, 2))), ()) == []


def test_turns_after_a_call_that_no_replay_repeats_cannot() -> None:
    browsed = recorded(tool_uses=(use(1), use(2, "browser_click")))
    assert branchable_turns(browsed, {"browser_click"}) == [2]


def test_an_opening_is_the_prompt_of_the_turn_with_the_answers_in_it() -> None:
    root = recorded()
    opening = opening_of(root, past_of(root, 3))
    assert opening.ids == root.sequences[0].tokens[:7]
    assert opening.messages == messages(3)[:5]
    assert [tuple(turn) for turn in opening.turns] == [(2, 3, 2), (4, 6, 4)]


def test_what_the_past_used_is_counted_from_its_tokens() -> None:
    assert past_of(recorded(), 3).usage == Usage(2 + 4, 1 + 2)


def test_the_time_of_the_past_is_that_of_the_slowest_call_of_each_turn() -> None:
    spans = [(Span.MODEL, 0), (Span.TOOL, 1), (Span.TOOL, 1), (Span.MODEL, 5), (Span.TOOL, 6), (Span.MODEL, 9)]
    timings = tuple(Timing(span, "", start, 1.0 + place) for place, (span, start) in enumerate(spans))
    root = recorded(timings=(*timings, Timing(Span.TOOL, "", 10, 50.0)))
    assert [timing.seconds for timing in past_of(root, 3).timings] == [3.0, 5.0]
    assert [timing.seconds for timing in past_of(root, 2).timings] == [3.0]


def test_uniform_names_every_turn_in_an_order_of_chance() -> None:
    orders = {tuple(turns_to_branch_at("uniform", recorded(), [2, 3], Random(seed))) for seed in range(20)}
    assert orders == {(2, 3), (3, 2)}


@pytest.mark.parametrize(("logprobs", "order"), [((-1.0, -3.0), [3, 2]), ((-3.0, -1.0), [2, 3])])
def test_highest_entropy_begins_where_the_mean_logprob_is_lowest(
    logprobs: tuple[float, float], order: list[int]
) -> None:
    second, third = logprobs
    whole = (None, None, -9.0, None, second, second, None, third, third, third)
    root = recorded()
    root = replace(root, sequences=(replace(root.sequences[0], logprobs=whole),))
    assert turns_to_branch_at("highest_entropy", root, [2, 3], Random(0)) == order


def test_first_failed_call_names_the_turns_with_failed_calls_only() -> None:
    root = recorded(tool_uses=(use(1, error="no such file"), use(2, result="fine"), use(3, error="again")))
    assert turns_to_branch_at("first_failed_call", root, [2, 3], Random(0)) == [3]
    assert turns_to_branch_at("first_failed_call", recorded(tool_uses=(use(2),)), [2, 3], Random(0)) == []


@pytest.mark.parametrize(
    ("result", "failed"),
    [
        ({"output": "", "exit_code": 1, "error": None}, True),
        ({"output": "", "exit_code": None, "error": "timed out"}, True),
        ({"output": "error", "exit_code": 0, "error": None}, False),
        ([1], False),
    ],
)
def test_a_call_failed_if_it_says_so(result: Any, failed: bool) -> None:
    assert call_failed(use(1, result=json.dumps(result))) is failed
    assert not call_failed(use(1, result="not JSON"))
