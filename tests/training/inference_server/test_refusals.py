"""What cannot be had is refused in OpenAI's form, with the field to blame; nothing that a body can hold is a 500."""

import asyncio
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp

from hermes_rl.inference.endpoint import CONTEXT_FULL
from hermes_rl.inference.tokens.chat_format import FormatSettings
from hermes_rl.training.inference_server.config import ChatFormats, InferenceSettings
from hermes_rl.training.inference_server.server import create_app
from hermes_rl.training.live_policy import SamplingPolicy
from tests.support.chat_models import chat_model
from tests.support.inference import CHATML, CONTEXT, USER, inference, saying

CHAT, COMPLETIONS, VLLM, SGLANG = "/v1/chat/completions", "/v1/completions", "/inference/v1/generate", "/generate"
SAID = {"messages": [USER]}
JSON = (b"content-type", b"application/json")


async def refused(path: str, body: Any = None, **request: Any) -> tuple[int, dict[str, Any]]:
    async with inference(saying("Yes."), max_completions=32) as server:
        status, answer = await server(path, body, **request)
    error: dict[str, Any] = answer["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    return status, error


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {**SAID, "temperature": -1}, "temperature"),
        (CHAT, {**SAID, "temperature": "hot"}, "temperature"),
        (CHAT, {**SAID, "temperature": math.nan}, "temperature"),
        (CHAT, {**SAID, "top_p": 1.5}, "top_p"),
        (CHAT, {**SAID, "max_tokens": -5}, "max_tokens"),
        (CHAT, {**SAID, "max_tokens": 0}, "max_tokens"),
        (CHAT, {**SAID, "max_completion_tokens": 0}, "max_tokens"),
        (CHAT, {**SAID, "n": 0}, "n"),
        (CHAT, {**SAID, "n": 10**9}, "n"),
        (CHAT, {**SAID, "seed": 2**70}, "seed"),
        (CHAT, {**SAID, "stop": ""}, "stop"),
        (CHAT, {**SAID, "stop": [1]}, "stop"),
        (CHAT, {**SAID, "stop_token_ids": [-1]}, "stop_token_ids"),
        (CHAT, {**SAID, "top_logprobs": 5}, "top_logprobs"),
        (CHAT, {**SAID, "tool_choice": "required"}, "tool_choice"),
        (CHAT, {**SAID, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        (CHAT, {**SAID, "response_format": {"type": "json_object"}}, "response_format"),
        (CHAT, {**SAID, "tools": [{}]}, "tools"),
        (CHAT, {**SAID, "reasoning_effort": "high"}, "reasoning_effort"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": [{"role": "alien", "content": "x"}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{"function": 5}]}]}, "messages"),
        (CHAT, {}, "messages"),
        (COMPLETIONS, {"prompt": []}, "prompt"),
        (COMPLETIONS, {"prompt": ""}, "prompt"),
        (COMPLETIONS, {"prompt": [[]]}, "prompt"),
        (COMPLETIONS, {"prompt": [-1]}, "prompt"),
        (COMPLETIONS, {"prompt": [10**6]}, "prompt"),
        (COMPLETIONS, {"prompt": [2**40]}, "prompt"),
        (COMPLETIONS, {"prompt": {"a": 1}}, "prompt"),
        (COMPLETIONS, {"prompt": ["a"] * 33}, "prompt"),
        (COMPLETIONS, {"prompt": "a", "n": 33}, "n"),
        (COMPLETIONS, {"prompt": "a", "echo": True}, "echo"),
        (COMPLETIONS, {"prompt": "a", "logprobs": 5}, "logprobs"),
        (COMPLETIONS, {"prompt": "a", "best_of": 3}, "best_of"),
        (VLLM, {"token_ids": [], "sampling_params": {}}, "token_ids"),
        (VLLM, {"token_ids": [10**6], "sampling_params": {}}, "token_ids"),
        (VLLM, {"token_ids": [5], "sampling_params": {"temperature": -1}}, "temperature"),
        (VLLM, {"token_ids": [5], "sampling_params": {"prompt_logprobs": 1}}, "sampling_params"),
        (VLLM, {"token_ids": [5], "sampling_params": {}, "stream": True}, "stream"),
        (SGLANG, {"input_ids": [10**6]}, "input_ids"),
        (SGLANG, {"input_ids": [5], "sampling_params": {"max_tokens": 5}}, "sampling_params"),
        ("/logprobs", {"token_ids": [10**6]}, "token_ids"),
    ],
)
async def test_what_cannot_be_had_is_refused_by_the_name_of_its_field(path: str, body: Any, param: str) -> None:
    status, error = await refused(path, body)
    assert status == 400
    assert error["param"].split(".")[0] == param, error


@pytest.mark.parametrize(
    "body", [{}, {"text": "a", "input_ids": [5]}, {"text": "a", "sampling_params": {"max_new_tokens": []}}]
)
async def test_a_generate_body_has_one_prompt_and_right_fields(body: Any) -> None:
    assert (await refused(SGLANG, body))[0] == 400


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'"x"', b"[" * 100_000])
async def test_a_body_that_is_no_object_is_refused(data: bytes) -> None:
    status, _ = await refused(CHAT, data=data or b" ", headers={"Content-Type": "application/json"})
    assert status == 400


async def test_a_body_that_is_too_large_is_cut_off() -> None:
    async with inference(saying("Yes."), max_body=1000) as server:
        status, answer = await server(CHAT, {"messages": [{"role": "user", "content": "a" * 2000}]})
    assert status == 413 and "1000 bytes" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "word " * CONTEXT}]}),
        (COMPLETIONS, {"prompt": [5] * CONTEXT}),
        (COMPLETIONS, {"prompt": [5] * (CONTEXT + 1)}),
        (VLLM, {"token_ids": [5] * CONTEXT, "sampling_params": {}}),
        (SGLANG, {"input_ids": [5] * CONTEXT}),
        ("/logprobs", {"token_ids": [5] * (CONTEXT + 1)}),
    ],
)
async def test_a_prompt_that_does_not_fit_is_told_as_our_client_knows_it(path: str, body: Any) -> None:
    status, error = await refused(path, body)
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert CONTEXT_FULL.search(error["message"])


async def test_a_caller_cannot_bring_a_chat_template() -> None:
    status, error = await refused(CHAT, {**SAID, "chat_template_kwargs": {"chat_template": "{{ 1 }}"}})
    assert status == 400 and "a request cannot set chat_template" in error["message"]


async def test_what_the_template_refuses_is_the_callers_to_mend() -> None:
    model = chat_model("mistral")
    async with inference(saying("Yes.", model=model), model=model) as server:
        status, answer = await server(CHAT, {"messages": [{"role": "developer", "content": "x"}, USER]})
    assert status == 400 and "chat template refuses" in answer["error"]["message"]


@pytest.mark.parametrize(("method", "path", "status"), [("GET", CHAT, 405), ("GET", "/v1/nothing", 404)])
async def test_there_are_no_other_routes(method: str, path: str, status: int) -> None:
    assert (await refused(path))[0] == status


@pytest.mark.parametrize("field", ["user", "metadata", "store", "service_tier"])
async def test_fields_that_say_nothing_of_the_answer_are_let_by(field: str) -> None:
    async with inference(saying("Yes.")) as server:
        assert (await server(CHAT, {**SAID, field: {}}))[0] == 200


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["system", "user", "assistant", "tool", "developer"]) | VALUES,
            "content": st.text(max_size=8) | VALUES,
            "tool_calls": st.lists(
                st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": st.text()}) | VALUES}), max_size=2
            )
            | VALUES,
            "tool_call_id": VALUES,
            "name": VALUES,
            "reasoning_content": VALUES,
        },
    ),
    max_size=4,
)
PROMPTS = st.lists(st.integers(-1, 1300), max_size=5) | st.lists(VALUES, max_size=3) | VALUES
NAMES = st.sampled_from(
    "tools tool_choice n max_tokens temperature top_p stop seed logprobs stream logit_bias stop_token_ids "
    "chat_template_kwargs return_token_ids min_tokens".split()
)


@pytest.fixture(scope="module")
def app() -> ASGIApp:
    policy = SamplingPolicy(patience=1.0)
    policy.publish(0, saying("Yes."))
    formats = ChatFormats(CHATML.tokenizer, FormatSettings())
    limits = InferenceSettings("m", context_tokens=CONTEXT, vocabulary=len(CHATML.tokenizer))
    return create_app(policy, formats, limits)


def posted(app: ASGIApp, path: str, body: Any) -> int:
    """The status of the answer to a body, without a socket."""
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": [JSON]}
    statuses: list[int] = []

    async def post() -> None:
        parts = iter([{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}])

        async def receive() -> Any:
            return next(parts, None) or await asyncio.Event().wait()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await app(scope, receive, send)

    asyncio.run(post())
    [status] = statuses
    return status


@settings(deadline=None, max_examples=150)
@given(messages=MESSAGES, fields=st.dictionaries(NAMES, VALUES, max_size=3))
def test_no_chat_body_is_a_failure_of_ours(app: ASGIApp, messages: list[Any], fields: dict[str, Any]) -> None:
    assert posted(app, CHAT, {"messages": messages, **fields}) in {200, 400}


@settings(deadline=None, max_examples=100)
@given(
    path=st.sampled_from([COMPLETIONS, VLLM, SGLANG, "/logprobs"]),
    body=st.dictionaries(st.sampled_from("prompt token_ids input_ids text".split()), PROMPTS, min_size=1, max_size=2),
    sampling=st.dictionaries(NAMES, VALUES, max_size=2) | VALUES,
)
def test_no_token_body_is_a_failure_of_ours(app: ASGIApp, path: str, body: dict[str, Any], sampling: Any) -> None:
    given = {} if path == "/logprobs" else sampling if path == COMPLETIONS else {"sampling_params": sampling}
    assert posted(app, path, {**body, **(given if isinstance(given, dict) else {})}) in {200, 400}
