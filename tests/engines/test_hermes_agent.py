"""Unmodified hermes-agent 0.19.0 in a bubblewrap sandbox on terminal_test, its model a scripted engine of token ids.

Its subagents and its compaction are exercised. Every token that the engine sampled stands in the rollout's sequences
once, with its logprob, and nothing else is trained on.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.trajectory import StopReason
from tests.support.ready_made import WORD, Script, assert_every_token_is_accounted_for, call, ready_made, rollout_of

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(300)]

HERMES: dict[str, Any] = {"agent_command": "agent:hermes-agent"}
CONTEXT = 32_000
# Four characters are a token for the agent, when it guesses, and for this tokenizer too.
PLENTY = "printf 'the %.0s' $(seq 1500)"
STEPS = 14
SUMMARY = "You are a summarization agent"


@pytest.fixture(scope="module", autouse=True)
def _hermes_agent() -> Iterator[None]:
    with ready_made("hermes-agent"):
        yield


async def test_it_does_the_task_with_its_own_tools(tmp_path: Path) -> None:
    def speak(_: str, turn: int) -> str:
        return [call("terminal", command=f"echo {WORD} > out.txt"), "Done."][turn]

    rollout = await rollout_of(script := Script(speak), tmp_path, **HERMES)
    assert (rollout.score, rollout.stop_reason, len(rollout.sequences)) == (1.0, StopReason.NATURAL, 1)
    assert rollout.messages[0]["content"].startswith("You are Hermes Agent")
    assert rollout.metadata["program"]["output"] == "Done.\n"
    assert_every_token_is_accounted_for(rollout, script)


async def test_its_subagents_are_sequences_of_the_same_rollout(tmp_path: Path) -> None:
    def speak(read: str, turn: int) -> str:
        if "delegate_task" in read:
            goals = [{"goal": f"SUBAGENT {name}"} for name in ("out.txt", "other.txt")]
            return [call("delegate_task", tasks=goals), "Both are done."][turn]
        (name,) = set(re.findall(r"SUBAGENT (\S+txt)", read))
        return [call("terminal", command=f"echo {WORD} > {name}"), f"{name} is there."][turn]

    rollout = await rollout_of(script := Script(speak), tmp_path, **HERMES)
    assert (rollout.score, len(rollout.sequences), len(script.said)) == (1.0, 3, 6)
    assert [use.name for use in rollout.tool_uses] == ["delegate_task"]
    assert "other.txt is there." in rollout.tool_uses[0].result
    assert_every_token_is_accounted_for(rollout, script)


async def test_its_compaction_begins_a_new_sequence_and_loses_none(tmp_path: Path) -> None:
    def speak(read: str, _: int) -> str:
        done = max(map(int, re.findall(r"step-(\d+)", read)), default=0)
        if SUMMARY in read:
            return f"## Completed Actions\nAll up to step-{done}."
        if done < STEPS:
            return call("terminal", command=f"echo step-{done + 1}; {PLENTY}")
        return call("terminal", command=f"echo {WORD} > out.txt; echo step-99") if done == STEPS else "Done."

    rollout = await rollout_of(script := Script(speak), tmp_path, CONTEXT, **HERMES)
    summaries = [read for read, _ in script.said if SUMMARY in read]
    assert (rollout.score, rollout.stop_reason) == (1.0, StopReason.NATURAL)
    assert summaries
    # One before each compaction, one after the last, and each summary on its own.
    assert len(rollout.sequences) >= 1 + 2 * len(summaries)
    assert_every_token_is_accounted_for(rollout, script)


async def test_a_full_context_makes_it_compact_and_go_on(tmp_path: Path) -> None:
    """What the gateway says of a full context is what a provider says, in words that the agent understands."""

    def speak(read: str, _: int) -> str:
        done = max(map(int, re.findall(r"step-(\d+)", read)), default=0)
        if SUMMARY in read:
            return f"## Completed Actions\nAll up to step-{done}."
        if done < 7:
            # The last is four times as many tokens as the agent guesses, so that it hears of them from the gateway.
            return call("terminal", command=f"echo step-{done + 1}; {PLENTY if done < 6 else 'seq 1000 2640'}")
        return call("terminal", command=f"echo {WORD} > out.txt; echo step-99") if done == 7 else "Done."

    rollout = await rollout_of(script := Script(speak), tmp_path, CONTEXT, **HERMES)
    assert rollout.score == 1.0
    assert any(SUMMARY in read for read, _ in script.said)
    assert_every_token_is_accounted_for(rollout, script)
