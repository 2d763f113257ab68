from typing import Any

import pytest

from tests.support.inference import ids, inference, saying
from tests.support.scripted_sampler import ScriptedSampler, by_chance
from tests.support.token_servers import logprob_of

COMPLETIONS = "/v1/completions"


async def asked(text: str, **fields: Any) -> dict[str, Any]:
    """The only choice of an answer in which the model says this."""
    async with inference(saying(text)) as server:
        answer = await server.right(COMPLETIONS, {"model": "policy", "prompt": "Say:", **fields})
    [choice] = answer["choices"]
    found: dict[str, Any] = choice
    return found


async def test_an_answer_has_all_fields_of_a_completion() -> None:
    async with inference(saying("Yes."), version=5) as server:
        answer = await server.right(COMPLETIONS, {"model": "policy", "prompt": "Say:"})
    assert answer["id"].startswith("cmpl-") and isinstance(answer["created"], int)
    assert (answer["object"], answer["model"], answer["policy_version"]) == ("text_completion", "policy", 5)
    assert answer["choices"] == [{"index": 0, "text": "Yes.", "finish_reason": "stop", "logprobs": None}]
    assert answer["usage"]["completion_tokens"] == len(ids("Yes."))


@pytest.mark.parametrize(
    ("prompt", "sent"),
    [
        ("Say:", [ids("Say:", stop=False)]),
        ([5, 6, 7], [(5, 6, 7)]),
        (["Say:", "No"], [ids("Say:", stop=False), ids("No", stop=False)]),
        ([[5, 6], [7]], [(5, 6), (7,)]),
    ],
)
async def test_a_prompt_is_text_or_ids_one_or_many(prompt: Any, sent: list[tuple[int, ...]]) -> None:
    sampler = saying("Yes.")
    async with inference(sampler) as server:
        answer = await server.right(COMPLETIONS, {"prompt": prompt, "n": 2, "return_token_ids": True})
    assert sorted(prompt for prompt, _ in sampler.asked) == sorted(sent)
    assert [choice["index"] for choice in answer["choices"]] == list(range(2 * len(sent)))
    prompts = [tuple(choice["prompt_token_ids"]) for choice in answer["choices"]]
    assert prompts == [one for one in sent for _ in range(2)]


@pytest.mark.parametrize(("fields", "most"), [({}, 16), ({"max_tokens": None}, 99), ({"max_tokens": 7}, 7)])
async def test_how_many_tokens_there_may_be(fields: dict[str, Any], most: int) -> None:
    sampler = saying("Yes.")
    async with inference(sampler, context_tokens=100) as server:
        await server.right(COMPLETIONS, {"prompt": [5], **fields})
    assert sampler.asked[0][1].max_tokens == most


async def test_a_cut_completion_says_so() -> None:
    choice = await asked("one two three four", max_tokens=3)
    assert choice["finish_reason"] == "length"


async def test_text_ends_before_a_stop_string_and_tokens_with_it() -> None:
    choice = await asked("one\n\ntwo", stop=["\n\n", "two"], return_token_ids=True)
    assert (choice["text"], choice["finish_reason"]) == ("one", "stop")
    assert tuple(choice["token_ids"]) == ids("one\n\n", stop=False)


async def test_text_that_was_cut_keeps_its_last_token() -> None:
    first, second, *_ = ids("one two three", stop=False)
    choice = await asked("one two three", max_tokens=2, return_token_ids=True)
    assert choice["token_ids"] == [first, second] and choice["text"]


async def test_the_end_of_text_is_an_end_unless_it_is_ignored() -> None:
    sampler = saying("Yes.")
    async with inference(sampler) as server:
        for ignored in (False, True):
            await server.right(COMPLETIONS, {"prompt": "a", "ignore_eos": ignored, "stop_token_ids": [9]})
    [(_, heeding), (_, ignoring)] = sampler.asked
    assert set(heeding.stop_token_ids) > {9} and ignoring.stop_token_ids == (9,)


async def test_logprobs_name_their_tokens_and_places() -> None:
    choice = await asked("one two", logprobs=0, return_token_ids=True)
    logprobs, tokens = choice["logprobs"], choice["token_ids"]
    assert logprobs["token_logprobs"] == [logprob_of(token) for token in tokens]
    texts = logprobs["tokens"]
    assert "".join(texts[:-1]) == "one two"
    assert logprobs["text_offset"] == [len("".join(texts[:place])) for place in range(len(texts))]


async def test_logprobs_name_ids_where_that_is_asked_for() -> None:
    choice = await asked("one", logprobs=1, return_token_ids=True, return_tokens_as_token_ids=True)
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]


async def test_a_stream_is_a_chunk_for_each_choice_then_done() -> None:
    async with inference(saying("Yes.")) as server:
        body = {"prompt": "a", "stream": True, "n": 2, "stream_options": {"include_usage": True}}
        raw = await server.right(COMPLETIONS, body)
    lines = raw.decode().split("\n\n")
    assert [line[:6] for line in lines] == ["data: "] * 4 + [""] and lines[3] == "data: [DONE]"


async def test_chat_text_and_tokens_draw_the_same_for_the_same_seed() -> None:
    async with inference(ScriptedSampler(by_chance(900))) as server:
        messages = [{"role": "user", "content": "a"}]
        body = {"messages": messages, "seed": 3, "return_token_ids": True}
        chat = await server.right("/v1/chat/completions", body)
        prompt, sampled = chat["prompt_token_ids"], chat["choices"][0]["token_ids"]
        same = {"seed": 3, "max_tokens": None, "n": 1}
        text = await server.right(COMPLETIONS, {"prompt": prompt, **same, "return_token_ids": True})
        vllm = await server.right("/inference/v1/generate", {"token_ids": prompt, "sampling_params": {"seed": 3}})
        asked = {"sampling_seed": 3, "max_new_tokens": None}
        sglang = await server.right("/generate", {"input_ids": prompt, "sampling_params": asked})
    assert text["choices"][0]["token_ids"] == vllm["choices"][0]["token_ids"] == sglang["output_ids"] == sampled
