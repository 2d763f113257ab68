"""Which conversation a call belongs to, and which one is the agent's own."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.core.messages import Message
from hermes_rl.gateway.conversations import Conversations


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(text: str, **fields: Any) -> Message:
    return {"role": "assistant", "content": text, **fields}


def call(contexts: Conversations, messages: list[Message], answer: Message, number: int = 1) -> None:
    contexts.add_answer(contexts.locate(messages), answer, number)


def test_a_call_that_goes_on_from_an_answer_grows_its_context() -> None:
    contexts = Conversations()
    call(contexts, [user("a")], said("1"))
    call(contexts, [user("a"), said(" 1 "), user("b")], said("2"), 2)
    [context] = contexts.all
    assert context.messages == [user("a"), said("1"), user("b"), said("2")]
    assert (context.answers, context.calls, context.prompt_length) == ([1, 3], [1, 2], 1)


def test_an_answer_sent_back_without_its_thinking_is_the_same() -> None:
    contexts = Conversations()
    call(contexts, [user("a")], said("1", reasoning_content="hm"))
    call(contexts, [user("a"), said("1"), user("b")], said("2"))
    assert len(contexts.all) == 1


def test_a_changed_past_is_another_context_that_keeps_what_was_alike() -> None:
    contexts = Conversations()
    call(contexts, [user("a")], said("1"))
    call(contexts, [user("a"), said("1"), user("b")], said("2"))
    call(contexts, [user("a"), said("1"), user("c")], said("3"))
    assert [context.messages[-1]["content"] for context in contexts.all] == ["2", "3"]
    assert contexts.all[1].answers == [1, 3]
    assert contexts.all[1].messages[0] is contexts.all[0].messages[0]


def test_two_answers_to_one_conversation_are_two_contexts() -> None:
    contexts = Conversations()
    one, other = contexts.locate([user("a")]), contexts.locate([user("a")])
    contexts.add_answer(one, said("1"), 1)
    contexts.add_answer(other, said("2"), 2)
    assert [context.messages for context in contexts.all] == [[user("a"), said("1")], [user("a"), said("2")]]


def test_the_main_context_has_the_most_answers_and_is_the_first_of_equals() -> None:
    contexts = Conversations()
    assert contexts.main() is None
    call(contexts, [user("title")], said("t"))
    call(contexts, [user("a")], said("1"))
    assert contexts.main() is contexts.all[0]
    call(contexts, [user("a"), said("1"), user("b")], said("2"))
    assert contexts.main() is contexts.all[1]


def test_a_context_has_the_last_tools_that_the_agent_offered_in_it() -> None:
    contexts = Conversations()
    first, second = {"function": {"name": "a"}}, {"function": {"name": "b"}}
    for number, tools in enumerate(([first], [first, second], [])):
        said_so_far = contexts.all[0].messages if contexts.all else []
        contexts.add_answer(contexts.locate([*said_so_far, user(f"{number}")]), said(f"{number}"), number, tools)
    [context] = contexts.all
    assert context.tools == [first, second]


@given(st.lists(st.lists(st.sampled_from("ab"), max_size=4), max_size=12))
def test_every_answer_stands_once_where_it_was_given(conversations: list[list[str]]) -> None:
    contexts = Conversations()
    for number, words in enumerate(conversations):
        messages = [user(word) for word in words]
        context = contexts.add_answer(contexts.locate(messages), said(str(number)), number)
        assert context.messages[context.answers[-1]] == said(str(number))
        assert context.messages[: len(messages)] == messages or context.answers[-1] == len(messages)
    ends = [context.calls[-1] for context in contexts.all]
    assert sorted(ends) == sorted(set(ends))
