"""ManagedServer over a real socket: what it asks for, how it tells ends apart, what it does when a server is bad."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from hermes_rl.core.errors import ConfigError, ContextFullError, DeadlineError, EndpointError
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.managed_server import ManagedServer
from hermes_rl.inference.server_manager import RetryPolicy, ServerManager
from hermes_rl.inference.tokens.chat_format import FormatSettings
from tests.support.chat_models import chat_model
from tests.support.scripted_model import Status
from tests.support.token_servers import Altered, Asked, SGLangServer, Tokens, TokenServer, VLLMServer, logprob_of

MODEL = chat_model("chatml")
USER = {"role": "user", "content": "Add 2 and 2."}


def ids(text: str, *, stop: bool = True) -> tuple[int, ...]:
    encoded = MODEL.tokenizer.encode(text, add_special_tokens=False)
    return (*encoded, MODEL.stop_ids[0]) if stop else tuple(encoded)


def says(text: str, **settings: Any) -> Any:
    return lambda _: Tokens(ids(text), **settings)


@asynccontextmanager
async def managed(
    *servers: TokenServer, kind: str = "vllm", ready: bool = True, settings: FormatSettings | None = None, **config: Any
) -> AsyncIterator[ManagedServer]:
    configs = [
        APIServerConfig.model_validate(
            {"base_url": server.base_url, "model_name": "scripted", "server_type": kind, "timeout": 10, **config}
        )
        for server in servers
    ]
    async with ServerManager(configs, retries=RetryPolicy(0.01, 0.02, 0.05)) as manager:
        if ready:
            await manager.wait_until_ready(5)
        async with manager.managed_server(MODEL.tokenizer, settings=settings) as server:
            yield server


async def conversation(server: ManagedServer, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Say these to a model one after the other, its answers in between."""
    messages: list[dict[str, Any]] = []
    for text in texts:
        messages.append({"role": "user", "content": text})
        answer = await server.chat_completion(messages, max_tokens=50)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
    return messages


async def test_turns_of_one_conversation_are_one_sequence_with_each_sampled_token_once() -> None:
    async with VLLMServer(says("Four.")) as engine, managed(engine) as server:
        await conversation(server, ["one", "two", "three"])
        [sequence] = server.checked().sequences
        sampled = [token for token, kept in zip(sequence.tokens, sequence.mask, strict=True) if kept]
        assert sampled == [*ids("Four.")] * 3
        assert [logprob for logprob in sequence.logprobs if logprob is not None] == [logprob_of(one) for one in sampled]
        assert {version for version in sequence.versions if version is not None} == {0}
        assert server.checked().breaches == ()
        text = MODEL.tokenizer.decode(sequence.tokens, skip_special_tokens=False)
        assert text.count("<|im_end|>") == 1 + 3 + 3


async def test_every_prompt_begins_with_the_tokens_of_the_turns_before() -> None:
    async with VLLMServer(says("Four.")) as engine, managed(engine) as server:
        await conversation(server, ["one", "two", "three"])
        prompts = [body["token_ids"] for body in engine.bodies]
        for earlier, later in pairwise(prompts):
            assert later[: len(earlier) + len(ids("Four."))] == [*earlier, *ids("Four.")]


async def test_a_stop_token_full_length_and_a_full_context_are_told_apart() -> None:
    long = "word " * 400
    async with VLLMServer(says(long), context=120) as engine, managed(engine) as server:
        cut = await server.chat_completion([USER], max_tokens=5)
        full = await server.chat_completion([USER], max_tokens=500)
        assert (cut.choices[0].finish_reason, full.choices[0].finish_reason) == ("length", "context_full")
        assert cut.usage.completion_tokens == 5
    async with VLLMServer(says("Four.")) as engine, managed(engine) as server:
        ended = await server.chat_completion([USER], max_tokens=50)
        assert ended.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("ready", [True, False])
async def test_a_prompt_that_does_not_fit_is_a_full_context(ready: bool) -> None:
    """Known before asking when the endpoint told its context, else from its refusal."""
    async with VLLMServer(says("Four."), context=16) as engine, managed(engine, ready=ready) as server:
        with pytest.raises(ContextFullError):
            await server.chat_completion([USER], max_tokens=5)


async def test_a_server_without_the_token_route_is_asked_for_completions_from_then_on() -> None:
    async with VLLMServer(says("Four."), scale_out=False) as engine, managed(engine) as server:
        await conversation(server, ["one", "two"])
        assert ["token_ids" in body for body in engine.bodies] == [True, False, False]
        [sequence] = server.checked().sequences
        assert sum(sequence.mask) == 2 * len(ids("Four."))
        assert set(sequence.versions) == {None}


async def test_sglang_gives_the_same_sequence() -> None:
    async with VLLMServer(says("Four.")) as engine, managed(engine) as server:
        await conversation(server, ["one", "two"])
        [expected] = server.checked().sequences
    async with SGLangServer(says("Four.")) as other, managed(other, kind="sglang") as server:
        await conversation(server, ["one", "two"])
        [found] = server.checked().sequences
    assert (found.tokens, found.mask, found.logprobs, found.versions) == (
        expected.tokens,
        expected.mask,
        expected.logprobs,
        expected.versions,
    )
    assert (expected.sampling.logprobs, found.sampling.logprobs) == ("raw", "processed")


async def test_samples_of_one_prompt_are_one_request_and_a_sequence_each() -> None:
    def differ(asked: Asked) -> list[Tokens]:
        return [Tokens(ids(f"Answer {place}.")) for place in range(asked.n)]

    async with VLLMServer(differ) as engine, managed(engine) as server:
        answer = await server.chat_completion([USER], n=4, max_tokens=50)
        assert [choice.message.content for choice in answer.choices] == [f"Answer {place}." for place in range(4)]
        assert engine.requests == 1
        sequences = server.checked().sequences
        assert [sum(sequence.mask) for sequence in sequences] == [len(ids(f"Answer {place}.")) for place in range(4)]


async def test_an_endpoint_that_ignores_n_is_asked_once_for_each() -> None:
    async with VLLMServer(says("Four.")) as engine, managed(engine, n_kwarg_is_ignored=True) as server:
        answer = await server.chat_completion([USER], n=3, max_tokens=50, seed=7)
        assert len(answer.choices) == engine.requests == 3
        assert sorted(body["sampling_params"]["seed"] for body in engine.bodies) == [7, 8, 9]


async def test_versions_change_in_the_middle_of_a_turn() -> None:
    script = says("One two three.", spans=(("step-4", 0, 2), ("5", 2, len(ids("One two three.")))))
    async with VLLMServer(script) as engine, managed(engine) as server:
        await server.chat_completion([USER], max_tokens=50)
        [sequence] = server.checked().sequences
        versions = [version for version in sequence.versions if version is not None]
        assert versions == [4, 4, *[5] * (len(versions) - 2)]


async def test_the_sampling_of_each_sequence_is_recorded() -> None:
    async with VLLMServer(says("Four.")) as engine, managed(engine) as server:
        await server.chat_completion([USER], temperature=0.7, extra_body={"top_p": 0.9, "top_k": 20}, max_tokens=9)
        [sequence] = server.checked().sequences
        sampling = sequence.sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.logprobs) == (0.7, 0.9, 20, "raw")


async def test_another_temperature_begins_another_sequence() -> None:
    async with VLLMServer(says("Four.")) as engine, managed(engine) as server:
        first = await server.chat_completion([USER], temperature=1.0, max_tokens=9)
        said = {"role": "assistant", "content": first.choices[0].message.content}
        await server.chat_completion([USER, said, USER], temperature=0.5, max_tokens=9)
        assert [one.sampling.temperature for one in server.checked().sequences] == [1.0, 0.5]
        assert [sum(one.mask) for one in server.checked().sequences] == [len(ids("Four."))] * 2


async def test_a_rollout_stays_with_the_endpoint_that_has_its_prefix() -> None:
    async with VLLMServer(says("Four.")) as one, VLLMServer(says("Four.")) as other, managed(one, other) as server:
        await conversation(server, ["a", "b", "c", "d"])
        assert sorted([one.requests, other.requests]) == [0, 4]


async def test_a_rollout_moves_on_when_its_endpoint_fails() -> None:
    async with (
        VLLMServer(lambda _: Status(503)) as bad,
        VLLMServer(says("Four.")) as good,
        managed(bad, good) as server,
    ):
        await conversation(server, ["a", "b", "c"])
        assert good.requests == 3
        assert len(server.checked().sequences) == 1


async def test_a_rollout_leaves_an_endpoint_that_has_much_more_to_do_than_another() -> None:
    async with VLLMServer(says("Four.")) as one, VLLMServer(says("Five.")) as other, managed(one, other) as server:
        messages = await conversation(server, ["one"])
        assert server._endpoint is not None
        server._endpoint.in_flight += 100
        left = server._endpoint
        await server.chat_completion([*messages, USER], max_tokens=50)
        left.in_flight -= 100
        assert server._endpoint is not left


async def test_a_rollout_that_is_too_old_for_the_trainer_asks_no_more() -> None:
    async with VLLMServer(says("Four."), weights="3") as engine, managed(engine) as server:
        await conversation(server, ["one"])
        server._server.oldest_trainable = 3
        await conversation(server, ["one", "two"])
        server._server.oldest_trainable = 4
        with pytest.raises(DeadlineError) as raised:
            await conversation(server, ["one", "two", "three"])
        assert (str(raised.value.failure), engine.requests) == ("framework/stale", 3)


async def test_a_rollout_that_has_sampled_nothing_yet_is_never_too_old() -> None:
    async with VLLMServer(says("Four."), weights="3") as engine, managed(engine) as server:
        server._server.oldest_trainable = 9
        await conversation(server, ["one"])
    assert engine.requests == 1


async def test_an_evaluation_is_never_too_old() -> None:
    """Nobody trains on it, and it may last for many steps of the trainer."""
    async with VLLMServer(says("Four."), weights="3") as engine, managed(engine) as server:
        for useful in (3, 9):
            server._server.oldest_trainable = useful
            await server.chat_completion([USER], split="eval", max_tokens=50)
    assert engine.requests == 2


async def test_an_engine_that_read_another_prompt_costs_the_sequence_with_its_evidence() -> None:
    def shifted(answer: Any) -> Any:
        return {**answer, "prompt_token_ids": [0, *answer["prompt_token_ids"][1:]]}

    async with VLLMServer(lambda _: Altered(Tokens(ids("Four.")), shifted)) as engine, managed(engine) as server:
        await server.chat_completion([USER], max_tokens=50)
        checked = server.checked()
        assert checked.sequences == ()
        [breach] = checked.breaches
        assert breach.cause == "prompt_ids"
        assert breach.evidence["kept"][0] == 0


async def test_missing_logprobs_are_the_endpoints_fault() -> None:
    def without(answer: Any) -> Any:
        return {**answer, "choices": [{**choice, "logprobs": None} for choice in answer["choices"]]}

    async with VLLMServer(lambda _: Altered(Tokens(ids("Four.")), without)) as engine, managed(engine) as server:
        with pytest.raises(EndpointError, match=r"http://.*logprob of each sampled token"):
            await server.chat_completion([USER], max_tokens=50)


async def test_a_broken_answer_is_asked_for_again() -> None:
    answers = iter([lambda raw: {**raw, "choices": raw["choices"] * 2}, lambda raw: raw])
    async with (
        VLLMServer(lambda _: Altered(Tokens(ids("Four.")), next(answers))) as engine,
        managed(engine) as server,
    ):
        await server.chat_completion([USER], max_tokens=50)
        assert engine.requests == 2
        assert len(server.checked().sequences) == 1


async def test_tool_calls_come_as_the_openai_client_gives_them() -> None:
    call = '<tool_call>\n{"name": "terminal", "arguments": {"command": "ls"}}\n</tool_call>'
    schema = {"type": "function", "function": {"name": "terminal", "parameters": {"type": "object"}}}
    async with VLLMServer(says(call)) as engine, managed(engine) as server:
        answer = await server.chat_completion([USER], tools=[schema], max_tokens=200)
        [choice] = answer.choices
        assert choice.finish_reason == "tool_calls"
        assert [(one.function.name, one.function.arguments) for one in choice.message.tool_calls] == [
            ("terminal", '{"command":"ls"}')
        ]


async def test_texts_that_go_on_from_each_other_are_one_sequence() -> None:
    async with (
        VLLMServer(lambda _: Tokens(ids(" and so on", stop=False), "length")) as engine,
        managed(engine) as server,
    ):
        [first] = await server.completion("Once upon a time", max_tokens=50)
        await server.completion(f"Once upon a time{first}, they said", max_tokens=50)
        [sequence] = server.checked().sequences
        assert sum(sequence.mask) == 2 * len(ids(" and so on", stop=False))
        assert server.checked().breaches == ()


async def test_the_state_has_the_nodes_of_the_seeds() -> None:
    async with VLLMServer(says("Four.")) as engine, managed(engine) as server:
        await server.chat_completion([USER], max_tokens=50)
        [node] = server.get_state()["nodes"]
        count = len(ids("Four."))
        assert node.masked_tokens == [-100] * (len(node.tokens) - count) + node.tokens[-count:]
        assert node.logprobs[:-count] == [1.0] * (len(node.tokens) - count)


async def test_a_server_of_another_kind_is_refused_with_what_to_pass() -> None:
    config = APIServerConfig(base_url="http://localhost:1/v1", model_name="m")
    async with ServerManager([config]) as manager:
        with pytest.raises(ConfigError, match=r"--openai\.server_type vllm"):
            async with manager.managed_server(MODEL.tokenizer):
                pass


async def test_template_settings_cannot_change_within_a_rollout() -> None:
    settings = FormatSettings(template={"enable_thinking": False})
    async with VLLMServer(says("Four.")) as engine, managed(engine, settings=settings) as server:
        await server.chat_completion(
            [USER], max_tokens=9, extra_body={"chat_template_kwargs": {"enable_thinking": False}}
        )
        with pytest.raises(ConfigError, match="chat_template_kwargs"):
            await server.chat_completion([USER], extra_body={"chat_template_kwargs": {"enable_thinking": True}})


async def test_a_conversation_that_was_compacted_begins_a_second_sequence_and_keeps_the_first() -> None:
    async with VLLMServer(says("Four.")) as engine, managed(engine) as server:
        messages = await conversation(server, ["a long story", "and another"])
        shorter = [{**messages[0], "content": "(dropped)"}, *messages[1:], USER]
        await server.chat_completion(shorter, max_tokens=50)
        assert [sum(one.mask) for one in server.checked().sequences] == [2 * len(ids("Four.")), len(ids("Four."))]
        assert server.checked().breaches == ()
