"""0 tool calls: the reason is told, with the next step."""

from typing import Any

import pytest

from hermes_rl.core.trajectory import Group, Provenance, Rollout, StopReason, ToolUse, Usage
from hermes_rl.rollout.metrics import RolloutCounts
from tests.rollout.test_rollout import writes_the_number
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import ScriptedModel, Text, always

SCHEMA = {"type": "function", "function": {"name": "terminal", "description": "x" * 600}}


def group(
    *,
    prompt: str = "write 5",
    tokens: int | None = 55,
    stop: StopReason = StopReason.NATURAL,
    calls: int = 0,
    score: float = 0.0,
    schemas: tuple[dict[str, Any], ...] = (SCHEMA,),
) -> Group:
    uses = tuple(ToolUse(1, str(call), "terminal", "{}", "") for call in range(calls))
    rollouts = tuple(
        Rollout(
            item_id="i",
            index=index,
            seed=0,
            messages=[{"role": "user", "content": prompt}, {"role": "assistant", "content": "5"}],
            score=score,
            stop_reason=stop,
            turns_used=1,
            tool_uses=uses,
            usage=Usage(tokens, 3),
            metadata={"prompt_length": 1},
        )
        for index in range(4)
    )
    return Group(
        item_id="i",
        item={},
        rollouts=rollouts,
        provenance=Provenance(environment="e", environment_hash="", model="m", versions={}, config_hash=""),
        tools=("terminal",) if schemas else (),
        tool_schemas=schemas,
    )


def diagnosis(*groups: Group) -> str | None:
    tally = RolloutCounts()
    for one in groups:
        tally.add(one)
    return tally.diagnosis


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ({}, "0 tool calls in 8 rollouts: the prompt contains no tool description (55 tokens; the descriptions alone"),
        ({"tokens": 400}, "the prompt describes the tools (400 tokens), but the model uses none"),
        ({"prompt": "use terminal"}, "the prompt describes the tools (55 tokens), but the model uses none"),
        ({"tokens": None}, "the endpoint does not report how long the prompt is"),
        (
            {"stop": StopReason.UNPARSED_TOOL_CALL},
            "8 replies contain one in another format; set --env.tool_call_parser",
        ),
    ],
)
def test_the_reason_is_told(case: dict[str, Any], told: str) -> None:
    text = diagnosis(group(**case), group(**case))
    assert text is not None and told in text and text.endswith('see "0 tool calls" in docs/faq.md')


@pytest.mark.parametrize(
    "groups", [(group(calls=1),), (group(score=1.0),), (group(), group(calls=1)), (group(schemas=()),), ()]
)
def test_nothing_is_told_where_a_tool_was_called_or_none_was_offered(groups: tuple[Group, ...]) -> None:
    assert diagnosis(*groups) is None


async def test_a_real_prompt_without_a_description_is_recognized() -> None:
    """The scripted server counts the words of the messages, as one with a template without tools would."""
    tally = RolloutCounts()
    async with ScriptedModel(always(Text("no"))) as model, opened(FileEnv, model, group_size=4) as env:
        tally.add(await env.collect_group({"number": 5}))
    assert "the prompt contains no tool description (2 tokens" in str(tally.diagnosis)


async def test_rollouts_in_flight_are_listed_while_they_run_and_not_after() -> None:
    seen: list[str] = []

    def script(request: dict[str, Any]) -> Any:
        seen.append(env.in_flight.text)
        return writes_the_number(request)

    async with ScriptedModel(script) as model, opened(FileEnv, model, group_size=1) as env:
        await env.collect_group({"number": 5})
        assert env.in_flight.text == ""
    assert seen[0] == "1 in flight: 0 turns, 0 tokens"
    assert seen[-1].startswith("1 in flight: 1 turn, ") and seen[-1].endswith("last tools terminal 1")
