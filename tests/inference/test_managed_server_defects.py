"""The seven defects of text-prefix matching, each as a check that such a server fails and ours passes."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import pairwise
from typing import Any, TypeAlias

import pytest

from hermes_rl.core.messages import Message
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.managed_server import ManagedServer, SequenceNode
from hermes_rl.inference.server_manager import ServerManager
from tests.support.chat_models import ChatModel, chat_model
from tests.support.text_prefix_server import TextPrefixServer
from tests.support.token_servers import Asked, Tokens, VLLMServer

CHATML, QWEN3 = chat_model("chatml"), chat_model("qwen3")
LOOK = {
    "type": "function",
    "function": {"name": "look", "description": "Look around", "parameters": {"type": "object", "properties": {}}},
}
CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


class Exact(ManagedServer):
    def trained(self) -> list[SequenceNode]:
        """What an environment takes of it, every node."""
        nodes: list[SequenceNode] = self.get_state()["nodes"]
        return nodes


Managed: TypeAlias = Exact | TextPrefixServer
Opened: TypeAlias = Callable[..., AbstractAsyncContextManager[Managed]]
Check: TypeAlias = Callable[[Opened], Awaitable[None]]


@asynccontextmanager
async def exact(
    engine: VLLMServer, model: ChatModel, *, tool_parser: str | None = None, preserve_think_blocks: bool | None = None
) -> AsyncIterator[Managed]:
    config = APIServerConfig.model_validate(
        {"base_url": engine.base_url, "model_name": "scripted", "server_type": "vllm", "timeout": 10}
    )
    async with ServerManager([config]) as manager:
        if tool_parser is not None:
            manager.tool_parser = tool_parser
        async with manager.managed_server(model.tokenizer, preserve_think_blocks) as server:
            yield Exact(manager, server.format, server.settings)


@asynccontextmanager
async def text_prefix(
    engine: VLLMServer, model: ChatModel, *, tool_parser: str | None = None, preserve_think_blocks: bool | None = None
) -> AsyncIterator[Managed]:
    yield TextPrefixServer(
        engine.root, model.tokenizer, tool_parser=tool_parser, preserve_think_blocks=bool(preserve_think_blocks)
    )


async def passes_here_alone(check: Check) -> None:
    await check(exact)
    with pytest.raises(AssertionError):
        await check(text_prefix)


def ids(model: ChatModel, text: str) -> tuple[int, ...]:
    return (*model.tokenizer.encode(text, add_special_tokens=False), model.stop_ids[0])


def saying(model: ChatModel, *texts: str) -> Callable[[Asked], Tokens]:
    """A script that says these one after the other, each with its end token."""
    left = iter(texts)
    return lambda _: Tokens(ids(model, next(left)))


async def talk(server: Managed, questions: Sequence[str], **parameters: Any) -> list[Message]:
    messages: list[Message] = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        message = (await server.chat_completion(messages, **parameters)).choices[0].message
        thinking = getattr(message, "reasoning_content", None)
        messages.append({"role": "assistant", "content": message.content})
        if thinking:
            messages[-1]["reasoning_content"] = thinking
    return messages


def trained(nodes: Sequence[SequenceNode]) -> list[int]:
    return [token for node in nodes for token in node.masked_tokens if token != -100]


@pytest.mark.parametrize("family", ["chatml", "qwen3", "llama3", "deepseek"])
async def test_no_turn_is_ended_twice(family: str) -> None:
    model = chat_model(family)

    async def check(opened: Opened) -> None:
        async with VLLMServer(saying(model, "One.", "Two.")) as engine, opened(engine, model) as server:
            await talk(server, ["first", "second"])
            tokens = server.trained()[-1].tokens
        assert not any(one == other == model.stop_ids[0] for one, other in pairwise(tokens))

    await passes_here_alone(check)


async def test_no_turn_is_ended_twice_with_tools() -> None:
    async def check(opened: Opened) -> None:
        script = saying(CHATML, "One.", "Two.")
        async with VLLMServer(script) as engine, opened(engine, CHATML, tool_parser="hermes") as server:
            await talk(server, ["first", "second"], tools=[LOOK])
            tokens = server.trained()[-1].tokens
        assert not any(one == other == CHATML.stop_ids[0] for one, other in pairwise(tokens))

    await passes_here_alone(check)


async def test_thinking_that_is_to_be_preserved_stays_in_one_sequence() -> None:
    texts = [f"<think>\nthought {place}\n</think>\n\nanswer {place}" for place in range(3)]

    async def check(opened: Opened) -> None:
        script = saying(QWEN3, *texts)
        async with VLLMServer(script) as engine, opened(engine, QWEN3, preserve_think_blocks=True) as server:
            await talk(server, ["first", "second", "third"])
            [node] = server.trained()
        assert QWEN3.tokenizer.decode(node.tokens).count("thought") == 3

    await passes_here_alone(check)


async def test_turns_before_a_compaction_are_trained_on_too() -> None:
    texts = ["One.", "Two.", "Three.", "Four."]

    async def check(opened: Opened) -> None:
        async with VLLMServer(saying(CHATML, *texts)) as engine, opened(engine, CHATML) as server:
            await talk(server, ["first", "second", "third"])
            await talk(server, ["In short: three were said. Go on."])
            assert trained(server.trained()) == [token for text in texts for token in ids(CHATML, text)]

    await passes_here_alone(check)


async def test_a_text_that_goes_on_keeps_what_was_sampled_before() -> None:
    async def check(opened: Opened) -> None:
        async with VLLMServer(saying(CHATML, " two,", " four.")) as engine, opened(engine, CHATML) as server:
            [text] = await server.completion("one,")
            await server.completion(f"one,{text} three,")
            assert trained(server.trained()) == [*ids(CHATML, " two,"), *ids(CHATML, " four.")]

    await passes_here_alone(check)


async def test_a_turn_cut_by_its_length_says_so_with_tools() -> None:
    async def check(opened: Opened) -> None:
        script = saying(CHATML, "a long answer that goes on and on")
        async with VLLMServer(script) as engine, opened(engine, CHATML, tool_parser="hermes") as server:
            asked: list[Message] = [{"role": "user", "content": "hello"}]
            answer = await server.chat_completion(asked, tools=[LOOK], max_tokens=3)
        assert answer.choices[0].finish_reason == "length"

    await passes_here_alone(check)


async def test_the_end_token_is_no_part_of_what_was_said_with_tools() -> None:
    async def check(opened: Opened) -> None:
        async with (
            VLLMServer(saying(CHATML, "hello")) as engine,
            opened(engine, CHATML, tool_parser="hermes") as server,
        ):
            answer = await server.chat_completion([{"role": "user", "content": "hello"}], tools=[LOOK])
        assert answer.choices[0].message.content == "hello"

    await passes_here_alone(check)


async def test_tools_are_shown_although_nobody_named_a_parser() -> None:
    async def check(opened: Opened) -> None:
        async with VLLMServer(saying(QWEN3, "hello")) as engine, opened(engine, QWEN3) as server:
            await server.chat_completion([{"role": "user", "content": "hello"}], tools=[LOOK])
            assert "Look around" in QWEN3.tokenizer.decode(engine.bodies[0]["token_ids"])

    await passes_here_alone(check)


async def test_tool_calls_are_objects() -> None:
    async def check(opened: Opened) -> None:
        async with VLLMServer(saying(CHATML, CALL)) as engine, opened(engine, CHATML, tool_parser="hermes") as server:
            answer = await server.chat_completion([{"role": "user", "content": "hello"}], tools=[LOOK])
        [call] = answer.choices[0].message.tool_calls
        assert getattr(getattr(call, "function", None), "name", None) == "look"

    await passes_here_alone(check)
