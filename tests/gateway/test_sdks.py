"""The official SDKs against the gateway: every dialect, streamed and not, with tools; what was said and its tokens."""

from typing import Any

import pytest

from tests.support import inference
from tests.support.gateway import CALL, gateway, says
from tests.support.inference import ids
from tests.support.token_servers import logprob_of

USER: Any = {"role": "user", "content": "What is here?"}
CHAT_TOOL: Any = inference.TOOL
ANTHROPIC_TOOL: Any = {"name": "terminal", "description": "Runs a command.", "input_schema": {"type": "object"}}
RESPONSES_TOOL: Any = {"type": "function", "name": "terminal", "parameters": {"type": "object"}, "strict": False}


def sampled(sequence: Any) -> list[int]:
    return [token for token, kept in zip(sequence.tokens, sequence.mask, strict=True) if kept]


def assert_one_exact_sequence(checked: Any, *texts: str) -> None:
    """All turns in one sequence, each sampled token once with its own logprob."""
    [sequence] = checked.sequences
    expected = [token for text in texts for token in ids(text)]
    assert checked.breaches == ()
    assert sampled(sequence) == expected
    assert [one for one in sequence.logprobs if one is not None] == [logprob_of(token) for token in expected]


@pytest.mark.parametrize("streamed", [False, True])
async def test_chat_completions_with_a_tool_call_is_one_exact_sequence(streamed: bool) -> None:
    async with gateway(says(f"Looking.\n{CALL}", "Two files.")) as at, at.visit() as agent:
        messages = [USER]
        if streamed:
            async with agent.openai.chat.completions.stream(model="m", messages=messages, tools=[CHAT_TOOL]) as stream:
                async for _ in stream:
                    pass
                message: Any = (await stream.get_final_completion()).choices[0].message
        else:
            answer: Any = await agent.openai.chat.completions.create(model="m", messages=messages, tools=[CHAT_TOOL])
            assert answer.choices[0].finish_reason == "tool_calls"
            message = answer.choices[0].message
        [call] = message.tool_calls
        assert (call.function.name, call.function.arguments) == ("terminal", '{"command":"ls"}')
        messages += [
            message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "a b"},
        ]
        last = await agent.openai.chat.completions.create(model="m", messages=messages, tools=[CHAT_TOOL])
        assert last.choices[0].message.content == "Two files."
        assert last.usage
        assert last.usage.completion_tokens == len(ids("Two files."))
        assert_one_exact_sequence(agent.checked(), f"Looking.\n{CALL}", "Two files.")
        result = agent.rollout.transcript()
        assert [one["role"] for one in result.messages] == ["user", "assistant", "tool", "assistant"]
        assert (result.final_response, result.turns_used, result.prompt_length) == ("Two files.", 2, 1)
        assert [(use.name, use.result) for use in result.tool_uses] == [("terminal", "a b")]


@pytest.mark.parametrize("streamed", [False, True])
async def test_anthropic_messages_with_a_tool_call_is_one_exact_sequence(streamed: bool) -> None:
    async with gateway(says(f"Looking.\n{CALL}", "Two files.")) as at, at.visit() as agent:
        messages = [USER]
        given: Any = {"model": "m", "max_tokens": 200, "system": "Be brief.", "tools": [ANTHROPIC_TOOL]}
        if streamed:
            async with agent.anthropic.messages.stream(messages=messages, **given) as stream:
                answer: Any = await stream.get_final_message()
        else:
            answer = await agent.anthropic.messages.create(messages=messages, **given)
        assert answer.stop_reason == "tool_use"
        [text, use] = answer.content
        assert (text.text.strip(), use.name, use.input) == ("Looking.", "terminal", {"command": "ls"})
        messages += [
            {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "a b"}]},
        ]
        last = await agent.anthropic.messages.create(messages=messages, **given)
        assert last.content[0].text == "Two files."
        assert last.usage.output_tokens == len(ids("Two files."))
        assert_one_exact_sequence(agent.checked(), f"Looking.\n{CALL}", "Two files.")
        roles = [one["role"] for one in agent.rollout.transcript().messages]
        assert roles == ["system", "user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_responses_with_a_tool_call_is_one_exact_sequence(streamed: bool) -> None:
    async with gateway(says(f"Looking.\n{CALL}", "Two files.")) as at, at.visit() as agent:
        items: list[Any] = [USER]
        given: Any = {"model": "m", "instructions": "Be brief.", "tools": [RESPONSES_TOOL]}
        if streamed:
            async with agent.openai.responses.stream(input=items, **given) as stream:
                async for _ in stream:
                    pass
                answer: Any = await stream.get_final_response()
        else:
            answer = await agent.openai.responses.create(input=items, **given)
        [call] = [item for item in answer.output if item.type == "function_call"]
        assert (call.name, call.arguments) == ("terminal", '{"command":"ls"}')
        items += [item.model_dump(exclude_none=True) for item in answer.output]
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "a b"})
        last = await agent.openai.responses.create(input=items, **given)
        assert last.output_text == "Two files."
        assert_one_exact_sequence(agent.checked(), f"Looking.\n{CALL}", "Two files.")


async def test_responses_goes_on_from_an_answer_that_it_only_names() -> None:
    async with gateway(says("One.", "Two.")) as at, at.visit() as agent:
        first = await agent.openai.responses.create(model="m", input="Count.")
        second = await agent.openai.responses.create(model="m", input="Go on.", previous_response_id=first.id)
        assert second.output_text == "Two."
        assert_one_exact_sequence(agent.checked(), "One.", "Two.")
        assert len(agent.rollout.conversations) == 1


async def test_a_rollout_may_speak_several_dialects() -> None:
    async with gateway(says("One.")) as at, at.visit() as agent:
        await agent.chat("first")
        await agent.anthropic.messages.create(
            model="m", max_tokens=50, messages=[{"role": "user", "content": "second"}]
        )
        await agent.openai.responses.create(model="m", input="third")
        assert len(agent.checked().sequences) == len(agent.rollout.conversations) == 3
        assert agent.rollout.transcript().messages[0]["content"] == "first"


async def test_the_one_model_is_listed_for_both_providers() -> None:
    async with gateway(says("One.")) as at, at.visit() as agent:
        assert [model.id async for model in agent.openai.models.list()] == ["policy"]
        assert [model.id async for model in agent.anthropic.models.list()] == ["policy"]
