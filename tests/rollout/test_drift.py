"""The signals of drift, against values worked out by hand."""

import json
from dataclasses import replace
from typing import Any

import pytest

from hermes_rl.core.messages import Message, ToolCall
from hermes_rl.core.trajectory import Group, Rollout
from hermes_rl.rollout.drift import DriftSignals
from tests.training.recorded_groups import group, rollout


def played(score: float | None, answer: str = "", *commands: str, tool: str = "terminal", **more: Any) -> Rollout:
    messages: list[Message] = [{"role": "user", "content": "Add 3 and 4."}]
    calls = [ToolCall.make(tool, json.dumps({"command": command})).as_dict() for command in commands]
    messages.append({"role": "assistant", "content": answer, "tool_calls": calls})
    return replace(rollout(score, ".#"), messages=messages, metadata={"prompt_length": 1}, **more)


def signals(*groups: Group) -> dict[str, float]:
    counted = DriftSignals()
    for one in groups:
        counted.add(one)
    return counted.summary()


def test_the_entropy_of_tool_names_is_in_bits() -> None:
    # Three of four calls of one tool: 0.75 log2(4/3) + 0.25 log2 4 = 0.8113.
    found = signals(group(played(1.0, "7", "ls", "ls", "ls"), played(0.0, "7", "ls", tool="web")))
    assert found["drift_tool_entropy"] == pytest.approx(0.811278, abs=1e-6)
    assert signals(group(played(1.0, "7", "ls", "ls")))["drift_tool_entropy"] == 0.0


def test_length_is_compared_within_groups() -> None:
    # Within each group longer answers score less; over both, longer ones score more.
    easy = group(played(1.0, "a" * 10), played(0.8, "a" * 12))
    hard = group(played(0.2, "a"), played(0.0, "a" * 3))
    assert signals(easy, hard)["drift_length_correlation"] == pytest.approx(-1.0)
    assert "drift_length_correlation" not in signals(group(played(1.0, "a"), played(0.0, "b")))


def test_a_reward_of_one_component_is_one_whose_largest_part_is_nine_tenths() -> None:
    one, both = {"right": 0.0, "format": 0.2, "style": 0.0}, {"right": 1.0, "format": 0.2}
    nothing, single = {"right": 0.0, "format": 0.0}, {"right": 1.0}
    rollouts = [played(0.5, components=components) for components in (one, both, both, both, nothing, single)]
    assert signals(group(*rollouts))["drift_one_component"] == 0.25


def test_the_share_of_rollouts_that_read_suspicious_paths() -> None:
    reads = played(1.0, "7", "cat /tests/test_sum.py", "cat /tests/other.py")
    found = signals(group(reads, played(0.0, "7", "ls"), played(None, "", "cat /tests/a.py")))
    assert found["drift_suspicious_reads"] == 0.5


def test_nothing_is_said_of_an_agent_without_tools_and_components() -> None:
    assert signals(group(played(1.0, "7"), played(1.0, "8"))) == {}
    assert signals() == {}


def test_a_record_without_the_length_of_its_prompt_begins_at_the_first_answer() -> None:
    reads = replace(played(1.0, "7", "cat /tests/a.py"), metadata={})
    assert signals(group(reads))["drift_suspicious_reads"] == 1.0
