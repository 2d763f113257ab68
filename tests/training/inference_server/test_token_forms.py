from collections.abc import Sequence
from typing import Any

import pytest

from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import EngineAnswer
from hermes_rl.training.live_policy import SamplingPolicy
from tests.support.inference import CHATML, ids, inference, saying
from tests.support.token_servers import logprob_of

VLLM, SGLANG = "/inference/v1/generate", "/generate"


async def generated(text: str, version: int = 3, **sampling: Any) -> dict[str, Any]:
    async with inference(saying(text), version=version) as server:
        body = {"token_ids": [5, 6], "sampling_params": {"logprobs": 0, **sampling}, "return_token_ids": True}
        answer: dict[str, Any] = await server.right(VLLM, body)
    return answer


async def completed(text: str, **body: Any) -> Any:
    async with inference(saying(text)) as server:
        return await server.right(SGLANG, {"input_ids": [5, 6], "return_logprob": True, **body})


async def test_vllm_names_id_logprob_and_version_of_every_token() -> None:
    answer = await generated("Yes.", version=12)
    [choice] = answer["choices"]
    tokens = list(ids("Yes."))
    content: list[Any] = [
        {"token_id": one, "logprob": logprob_of(one), "rank": None, "top_logprobs": []} for one in tokens
    ]
    assert (choice["token_ids"], choice["logprobs"]) == (tokens, {"content": content})
    assert choice["weight_versions"] == [{"version": "12", "start": 0, "end": len(tokens)}]
    assert (answer["prompt_token_ids"], answer["usage"]["completion_tokens"]) == ([5, 6], len(tokens))


class Exchanged(SamplingPolicy):
    """Weights that are exchanged after the first token of every completion, as vLLM can."""

    async def sample(self, ids: Sequence[int], request: SamplingRequest, version: int | None = None) -> EngineAnswer:
        answer = await super().sample(ids, request)
        completions = [one._replace(versions=(one.versions[0], *(9 for _ in one.tokens[1:]))) for one in answer[0]]
        return answer._replace(completions=tuple(completions))


async def test_a_completion_of_two_versions_names_both_and_goes_by_the_older() -> None:
    async with inference(saying("Yes."), version=8, policy=Exchanged()) as server:
        answer = await server.right(VLLM, {"token_ids": [5], "sampling_params": {}})
        sglang = await server.right(SGLANG, {"input_ids": [5]})
    spans = [{"version": "8", "start": 0, "end": 1}, {"version": "9", "start": 1, "end": len(ids("Yes."))}]
    assert (answer["policy_version"], answer["choices"][0]["weight_versions"]) == (8, spans)
    assert (sglang["meta_info"]["weight_version"], sglang["meta_info"]["weight_versions"]) == ("9", spans)


async def test_vllm_says_what_ended_a_completion() -> None:
    [by_token] = (await generated("Yes."))["choices"]
    [by_string] = (await generated("Yes. No.", stop=[" No"]))["choices"]
    [by_length] = (await generated("Yes. No.", max_tokens=2))["choices"]
    told = [(one["finish_reason"], one["stop_reason"]) for one in (by_token, by_string, by_length)]
    assert told == [("stop", CHATML.stop_ids[0]), ("stop", " No"), ("length", None)]


async def test_vllm_gives_no_logprobs_unasked() -> None:
    [choice] = (await generated("Yes.", logprobs=None))["choices"]
    assert choice["logprobs"] is None


async def test_sglang_names_id_logprob_and_version_of_every_token() -> None:
    answer = await completed("Yes.")
    meta, tokens = answer["meta_info"], list(ids("Yes."))
    assert (answer["output_ids"], answer["text"]) == (tokens, "Yes.")
    assert meta["output_token_logprobs"] == [[logprob_of(one), one, None] for one in tokens]
    assert (meta["weight_version"], meta["weight_versions"]) == (
        "3",
        [{"version": "3", "start": 0, "end": len(tokens)}],
    )
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (2, len(tokens))


async def test_sglang_says_what_ended_a_completion() -> None:
    by_token = await completed("Yes.")
    by_string = await completed("Yes. No.", sampling_params={"stop": " No"})
    by_length = await completed("Yes. No.", sampling_params={"max_new_tokens": 2})
    assert [one["meta_info"]["finish_reason"] for one in (by_token, by_string, by_length)] == [
        {"type": "stop", "matched": CHATML.stop_ids[0]},
        {"type": "stop", "matched": " No"},
        {"type": "length", "length": 2},
    ]


async def test_sglang_gives_a_list_for_more_than_one() -> None:
    several = await completed("Yes.", sampling_params={"n": 2})
    batch = await completed("Yes.", input_ids=[[5], [6], [7]])
    alone_in_a_batch = await completed("Yes.", input_ids=[[5]])
    assert [len(one) for one in (several, batch, alone_in_a_batch)] == [2, 3, 1]


async def test_sglang_takes_text_and_gives_the_prompt_back() -> None:
    async with inference(saying("Yes.")) as server:
        answer = await server.right(SGLANG, {"text": "Say:", "return_prompt_token_ids": True})
    assert tuple(answer["prompt_token_ids"]) == ids("Say:", stop=False)
    assert "output_token_logprobs" not in answer["meta_info"]


async def test_sglang_writes_the_tokens_out_where_that_is_asked_for() -> None:
    answer = await completed("Yes.", return_text_in_logprobs=True)
    texts = [text for _, _, text in answer["meta_info"]["output_token_logprobs"]]
    assert "".join(texts) == f"Yes.{CHATML.tokenizer.decode([CHATML.stop_ids[0]])}"


@pytest.mark.parametrize(("fields", "most"), [({}, 128), ({"max_new_tokens": None}, 510), ({"max_new_tokens": 7}, 7)])
async def test_sglangs_own_number_of_tokens(fields: dict[str, Any], most: int) -> None:
    sampler = saying("Yes.")
    async with inference(sampler, context_tokens=512) as server:
        await server.right(SGLANG, {"input_ids": [5, 6], "sampling_params": fields})
    assert sampler.asked[0][1].max_tokens == most


async def test_logprobs_of_ids_and_of_text() -> None:
    async with inference(saying("Yes."), version=4) as server:
        of_ids = await server.right("/logprobs", {"token_ids": [5, 6, 7]})
        of_text = await server.right("/logprobs", {"text": "Say:"})
    assert of_ids == {"token_ids": [5, 6, 7], "logprobs": [None, logprob_of(6), logprob_of(7)], "policy_version": 4}
    assert tuple(of_text["token_ids"]) == ids("Say:", stop=False)
