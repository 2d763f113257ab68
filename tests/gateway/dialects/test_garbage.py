"""Nothing that an agent can send makes a dialect fail: it is read, or refused as the provider would."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl.core import fast_json
from hermes_rl.core.messages import Message, ToolCall
from hermes_rl.gateway.dialects import DIALECTS, Dialect, PreviousResponses
from hermes_rl.gateway.errors import RequestProblem
from hermes_rl.gateway.request import BadRequestError
from tests.support.dialects import BODIES, LOOK, conversations, told, values

each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)

FIELDS = (
    "messages input role content type text name arguments tool_calls function_call tools functions tool_choice stop "
    "stop_sequences system thinking signature source data input_schema parameters id call_id output summary stream n "
    "max_tokens max_output_tokens response_format format stream_options modalities include store previous_response_id "
    "instructions reasoning_content reasoning_details encrypted_content tool_use_id tool_call_id refusal model "
    "contents parts systemInstruction functionCall functionResponse functionDeclarations args response thought "
    "thoughtSignature generationConfig toolConfig functionCallingConfig mode maxOutputTokens stopSequences"
).split()
WORDS = (
    "user assistant system developer tool function text image_url input_text output_text tool_use tool_result thinking "
    "redacted_thinking document search_result message function_call function_call_output reasoning item_reference auto "
    "none required any ANY AUTO custom allowed_tools json_schema rs_hrl_0_0 fc_hrl_0_9999 msg_hrl__0 resp_0 "
    "hermes-rl:%% hermes-rl:/w=="
).split()
junk = st.recursive(
    values | st.sampled_from(WORDS) | st.integers(-2, 2),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6),
    max_leaves=12,
)
bodies = st.dictionaries(st.sampled_from(FIELDS), junk, max_size=8)


def refused_or_read(dialect: Dialect, body: Any) -> None:
    earlier = PreviousResponses()
    kept = told("said", ToolCall.make("look", "{}", "call_1"), number=0)
    earlier.add(dialect.parse_request(BODIES[dialect.name]([{"role": "user", "content": "x"}])), kept)
    try:
        asked = dialect.parse_request(body, earlier)
    except BadRequestError as error:
        status, told_so = dialect.refusal(RequestProblem.from_error(error))
        assert status == 400 and told_so["error"]["message"]
        return
    assert asked.messages and all(type(message["content"]) is str for message in asked.messages)
    answer = told("yes", ToolCall.make("look", "[", "call_2"), thinking="hm")
    fast_json.dumps(dialect.answer(asked, answer))
    assert list(dialect.events(asked, answer))


@each_dialect
@given(body=junk | bodies)
def test_any_json_is_read_or_refused(dialect: Dialect, body: Any) -> None:
    refused_or_read(dialect, body)


@each_dialect
@given(messages=conversations(), data=st.data())
@settings(deadline=None)
def test_a_request_that_is_wrong_in_places_is_read_or_refused(
    dialect: Dialect, messages: list[Message], data: st.DataObject
) -> None:
    body = copy.deepcopy(BODIES[dialect.name](messages, [LOOK]))
    for _ in range(data.draw(st.integers(1, 3))):
        _spoil(body, data)
    refused_or_read(dialect, body)


def _spoil(body: Any, data: st.DataObject) -> None:
    """Put something else in a place of the body, however deep."""
    place = body
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.integers(0, 3)) == 0:
            place[key] = data.draw(junk)
            return
        place = place[key]


@each_dialect
@pytest.mark.parametrize("body", [None, [], "text", 7, True, {}])
def test_what_is_no_request_is_refused(dialect: Dialect, body: Any) -> None:
    with pytest.raises(BadRequestError):
        dialect.parse_request(body)
