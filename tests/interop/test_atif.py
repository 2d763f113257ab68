"""Rollouts as ATIF documents and back, validated by the `atif` package."""

import json
from typing import Any

import pytest
from atif import Trajectory
from hypothesis import HealthCheck, given, settings

from hermes_rl.core import fast_json
from hermes_rl.core.trajectory import Group, Rollout, SampledCall, Sampling, Sequence, StopReason, Usage
from hermes_rl.interop import atif
from hermes_rl.store.records import group_from_record, group_to_record
from tests.interop.rollouts import SCHEMAS, groups
from tests.store.database.making import PROVENANCE

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Use the tools."},
    {"role": "user", "content": "Write 4."},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "I write it.",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "4"},
    {"role": "assistant", "content": "Done."},
]
TWO_TURNS = Sequence(
    (1, 2, 3, 10, 11, 4, 20, 5),
    (0, 0, 0, 1, 1, 0, 1, 0),
    (None, None, None, -0.25, -0.5, None, -0.75, None),
    (None, None, None, 7, 7, None, 8, None),
    Sampling(0.5, top_p=0.9, logprobs="raw"),
    (SampledCall(0, 3), SampledCall(1, 6)),
)


def rollout(**fields: Any) -> Rollout:
    made: dict[str, Any] = {
        "item_id": "item", "index": 0, "seed": 3, "messages": MESSAGES, "score": 1.0, "stop_reason": StopReason.NATURAL,
        "turns_used": 2, "usage": Usage(9, 3), "sequences": (TWO_TURNS,), "metadata": {"prompt_length": 2},
    }  # fmt: skip
    return Rollout(**{**made, **fields})


def group(*rollouts: Rollout) -> Group:
    return Group(item_id="item", item={"n": 4}, rollouts=rollouts, provenance=PROVENANCE, id="g", tool_schemas=SCHEMAS)


def document(one: Rollout | None = None) -> dict[str, Any]:
    one = one or rollout()
    return sent(atif.document(group(one), one))


def sent(value: dict[str, Any]) -> dict[str, Any]:
    """As another program gets it: written, validated by the package, written again."""
    done = Trajectory.model_validate_json(fast_json.dumps(value)).to_json_dict()
    return dict(fast_json.loads(fast_json.dumps(done)))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(groups())
def test_random_rollouts_validate_and_come_back_equal(made: Group) -> None:
    kept = group_from_record(fast_json.loads(fast_json.dumps(group_to_record(made))))
    back = atif.read_group([sent(atif.document(kept, one)) for one in kept.rollouts])
    assert json.dumps(group_to_record(back), sort_keys=True) == json.dumps(group_to_record(kept), sort_keys=True)


def test_tools_that_an_agent_offered_in_one_rollout_alone_stay_with_it() -> None:
    own = [{"type": "function", "function": {"name": "mine"}}]
    made = group(rollout(metadata={"prompt_length": 2, "tool_schemas": own}), rollout(index=1))
    documents = [sent(atif.document(made, one)) for one in made.rollouts]
    assert documents[0]["agent"]["tool_definitions"] == own
    again = atif.read_group(documents)
    assert (again.tool_schemas, again.rollouts[0].metadata["tool_schemas"]) == (made.tool_schemas, own)


def test_each_turn_has_the_tokens_it_was_sampled_from() -> None:
    first, second = (step["metrics"] for step in document()["steps"] if step["source"] == "agent")
    assert first["prompt_token_ids"] == [1, 2, 3]
    assert first["completion_token_ids"] == [10, 11]
    assert first["logprobs"] == [-0.25, -0.5]
    assert second["prompt_token_ids"] == [1, 2, 3, 10, 11, 4]


def test_a_usual_rollout_keeps_no_message_and_no_token_twice() -> None:
    kept = document()["extra"]["hermes_rl"]
    assert "messages" not in kept["rollout"]
    assert [sorted(one) for one in kept["sequences"]] == [["end", "has_calls", "sampling"]]
    [call] = document()["steps"][2]["tool_calls"]
    assert call["arguments"] == {"a": 1}


def test_a_worked_example_is_marked_as_copied() -> None:
    steps = document(rollout(metadata={"prompt_length": 4}, sequences=()))["steps"]
    assert [step.get("is_copied_context", False) for step in steps] == [False, False, True, False]


def test_a_document_of_other_software_is_read_from_the_standard_fields() -> None:
    other = document()
    del other["extra"]
    for step in other["steps"]:
        step.pop("extra", None)
        step.get("metrics", {}).pop("extra", None)
    read = atif.read_rollout(other, item_id="task")
    assert read.score == 1.0
    assert [message["role"] for message in read.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert [use.result for use in read.tool_uses] == ["4"]
    [sequence] = read.sequences
    assert sequence.tokens == TWO_TURNS.tokens[:-1]
    assert sequence.logprobs == TWO_TURNS.logprobs[:-1]
    assert set(sequence.versions) == {None}


def test_a_document_without_a_reward_is_unscored() -> None:
    other = document()
    del other["extra"], other["final_metrics"]
    assert str(atif.read_rollout(other).failure) == "verifier/no_score"


def test_subagents_follow_their_parent() -> None:
    inner = {**document(), "trajectory_id": "inner"}
    outer = sent({**document(), "subagent_trajectories": [inner]})
    assert [one["trajectory_id"] for one in atif.embedded(outer)] == ["g-0", "inner"]


def test_token_ids_can_be_removed() -> None:
    made = document()
    assert atif.without_tokens(made)
    assert atif.read_rollout(made).sequences == ()
    assert not atif.without_tokens(made)


@pytest.mark.parametrize("wrong", [{}, {"steps": [{}]}, {"steps": 3}, {"steps": [{"source": "agent", "message": [1]}]}])
def test_what_is_no_document_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not an ATIF document"):
        atif.read_rollout(wrong)
