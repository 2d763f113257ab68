"""What is said in any dialect is the same in our words, and what the policy said comes back as it was."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.core import fast_json
from hermes_rl.core.messages import Message
from hermes_rl.gateway.dialects import ANTHROPIC, CHAT, DIALECTS, GOOGLE, RESPONSES, Dialect
from hermes_rl.inference.tokens.recorder import same_message
from tests.support.dialects import BODIES, LOOK, conversations, written

each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


def on_the_wire(value: Any) -> Any:
    return fast_json.loads(fast_json.dumps(value))


def same(sent: list[Message], kept: list[Message]) -> bool:
    """As the recorder compares: of what was sampled, key order and space in arguments do not count."""
    return len(sent) == len(kept) and all(
        same_message(one, other) if other["role"] == "assistant" else one == other
        for one, other in zip(sent, kept, strict=True)
    )


@given(conversations())
def test_a_conversation_in_chat_is_read_as_it_was(messages: list[Message]) -> None:
    assert CHAT.parse_request(on_the_wire(BODIES["chat"](messages))).messages == messages


@given(conversations())
def test_a_conversation_in_responses_is_read_as_it_was(messages: list[Message]) -> None:
    assert RESPONSES.parse_request(on_the_wire(BODIES["responses"](messages))).messages == messages


@pytest.mark.parametrize("dialect", [ANTHROPIC, GOOGLE], ids=lambda dialect: dialect.name)
@given(messages=conversations())
def test_a_conversation_is_read_as_the_recorder_knows_it(dialect: Dialect, messages: list[Message]) -> None:
    assert same(dialect.parse_request(on_the_wire(BODIES[dialect.name](messages))).messages, messages)


@given(conversations())
def test_writing_and_reading_again_changes_nothing_more(messages: list[Message]) -> None:
    for dialect in DIALECTS:
        once = dialect.parse_request(on_the_wire(BODIES[dialect.name](messages))).messages
        assert dialect.parse_request(on_the_wire(BODIES[dialect.name](once))).messages == once


@given(conversations(written), st.sampled_from(DIALECTS), st.sampled_from(DIALECTS))
def test_two_dialects_that_say_the_same_ask_the_same(messages: list[Message], one: Dialect, other: Dialect) -> None:
    asked = [dialect.parse_request(on_the_wire(BODIES[dialect.name](messages, [LOOK]))) for dialect in (one, other)]
    assert same(asked[0].messages, asked[1].messages)
    assert asked[0].tools == asked[1].tools == [LOOK]


@each_dialect
def test_a_surrogate_alone_is_read(dialect: Dialect) -> None:
    body = fast_json.loads(
        b'{"model": "m", "max_tokens": 9, "input": "\\ud800", "messages": [{"role": "user", "content": "\\ud800"}], '
        b'"contents": [{"parts": [{"text": "\\ud800"}]}]}'
    )
    assert dialect.parse_request(body).messages == [{"role": "user", "content": "�"}]
