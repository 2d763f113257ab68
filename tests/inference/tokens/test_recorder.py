"""What the recorder keeps of a conversation, read from streams in which a token is a character."""

from typing import Any

import pytest

from hermes_rl.core.messages import Message
from hermes_rl.core.trajectory import Sampling
from hermes_rl.inference.tokens.recorder import Recorder, assistant_message, same_message
from hermes_rl.inference.tokens.sampled import Sampled
from tests.support.letter_format import TOOL, LetterFormat, said

WARM, COLD = Sampling(1.0), Sampling(0.5)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


class Rollout:
    """An agent's side: asks, hears what is scripted, and sends back what it got."""

    def __init__(self, *, strips_thinking: bool = False) -> None:
        self.recorder = Recorder(LetterFormat(strips_thinking=strips_thinking))

    def ask(
        self, messages: list[Message], *answers: str | Sampled, sampling: Sampling = WARM, tools: Any = ()
    ) -> list[Message]:
        """The messages that were sampled."""
        ask = self.recorder.prepare(messages, tools)
        sampled = [said(one) if isinstance(one, str) else one for one in answers]
        return [assistant_message(reply) for reply in self.recorder.record(ask, sampled, sampling)]

    def ask_text(self, prompt: str | list[int], answer: str) -> None:
        self.recorder.record(self.recorder.prepare_text(prompt), [said(answer)], WARM)

    @property
    def streams(self) -> list[str]:
        """Each sequence, with its sampled characters in capitals."""
        return [
            "".join(
                chr(token).upper() if kept else chr(token)
                for token, kept in zip(one.sequence.tokens, one.sequence.mask, strict=True)
            ).replace("|", ".")
            for one in self.recorder.sequences()
        ]


def test_a_first_prompt_is_the_whole_conversation() -> None:
    rollout = Rollout()
    rollout.ask([{"role": "system", "content": "be kind"}, user("hi")], "hello|")
    assert rollout.streams == ["s:be kind.u:hi.a:HELLO."]


def test_a_next_turn_extends_the_stream() -> None:
    rollout = Rollout()
    messages = [user("hi")]
    messages += rollout.ask(messages, "hello|")
    rollout.ask([*messages, user("bye")], "ciao|")
    assert rollout.streams == ["u:hi.a:HELLO.u:bye.a:CIAO."]


def test_a_cut_turn_is_ended_by_the_context_that_follows() -> None:
    rollout = Rollout()
    messages = [user("hi")]
    messages += rollout.ask(messages, "hel")
    rollout.ask([*messages, user("bye")], "ciao|")
    assert rollout.streams == ["u:hi.a:HEL.u:bye.a:CIAO."]


def test_sampled_space_is_kept_although_the_agent_strips_it() -> None:
    rollout = Rollout()
    rollout.ask([user("hi")], "  hello \n|")
    rollout.ask([user("hi"), {"role": "assistant", "content": "hello"}, user("bye")], "ciao|")
    assert rollout.streams == ["u:hi.a:  HELLO \n.u:bye.a:CIAO."]


def test_logprobs_and_versions_stand_on_the_tokens_they_were_given_for() -> None:
    rollout = Rollout()
    messages = [user("q")]
    messages += rollout.ask(messages, Sampled((97, 124), (-1.0, -2.0), (3, 4), said("").finish))
    rollout.ask([*messages, user("r")], Sampled((98, 124), (-3.0, -4.0), (4, None), said("").finish))
    [one] = rollout.recorder.sequences()
    columns = zip(one.sequence.tokens, one.sequence.logprobs, one.sequence.versions, strict=True)
    assert [column for column in columns if column[1] is not None] == [
        (97, -1.0, 3),
        (124, -2.0, 4),
        (98, -3.0, 4),
        (124, -4.0, None),
    ]


def test_tokens_that_were_not_sampled_have_no_logprob_and_no_version() -> None:
    rollout = Rollout()
    rollout.ask([user("hi")], "hello|")
    [one] = rollout.recorder.sequences()
    assert one.sequence.logprobs[:7] == one.sequence.versions[:7] == (None,) * 7


@pytest.mark.parametrize(
    "edited",
    [
        {"content": "hullo"},
        {"content": "hello", "reasoning_content": "I should greet"},
        {"content": "hello", "tool_calls": [{"id": "1", "function": {"name": "look", "arguments": "{}"}}]},
        {"role": "user", "content": "hello"},
    ],
    ids=["text", "thinking added", "call added", "role"],
)
def test_an_edited_reply_begins_a_new_sequence(edited: Message) -> None:
    rollout = Rollout()
    rollout.ask([user("hi")], "hello|")
    rollout.ask([user("hi"), {"role": "assistant", **edited}, user("bye")], "ciao|")
    assert [stream.count("HELLO") for stream in rollout.streams] == [1, 0]


def test_dropped_thinking_begins_a_new_sequence() -> None:
    rollout = Rollout()
    rollout.ask([user("hi")], "(hm)hello|")
    rollout.ask([user("hi"), {"role": "assistant", "content": "hello"}, user("bye")], "ciao|")
    assert rollout.streams == ["u:hi.a:(HM)HELLO.", "u:hi.a:hello.u:bye.a:CIAO."]


def test_a_past_the_template_would_rewrite_begins_a_new_sequence() -> None:
    rollout = Rollout(strips_thinking=True)
    messages = [user("hi")]
    messages += rollout.ask(messages, "(hm)hello|")
    rollout.ask([*messages, user("bye")], "(ah)ciao|")
    assert rollout.streams == ["u:hi.a:(HM)HELLO.", "u:hi.a:hello.u:bye.a:(AH)CIAO."]


def test_a_new_sequence_is_extended_in_its_turn() -> None:
    rollout = Rollout(strips_thinking=True)
    messages = [user("hi")]
    messages += rollout.ask(messages, "(hm)hello|")
    messages += [user("bye"), *rollout.ask([*messages, user("bye")], "(ah)[look]|")]
    rollout.ask([*messages, {"role": "tool", "content": "7"}], "seven|")
    assert rollout.streams[1:] == ["u:hi.a:hello.u:bye.a:(AH)[LOOK].r:7.a:SEVEN."]


def test_a_conversation_without_a_user_extends_where_its_past_stays() -> None:
    rollout = Rollout()
    messages: list[Message] = [{"role": "system", "content": "go"}]
    messages += rollout.ask(messages, "(hm)[look]|")
    rollout.ask([*messages, {"role": "tool", "content": "7"}], "seven|")
    assert rollout.streams == ["s:go.a:(HM)[LOOK].r:7.a:SEVEN."]


def test_a_conversation_without_a_user_does_not_extend_a_past_that_would_change() -> None:
    rollout = Rollout(strips_thinking=True)
    messages: list[Message] = [{"role": "system", "content": "go"}]
    messages += rollout.ask(messages, "(hm)[look]|")
    rollout.ask([*messages, {"role": "tool", "content": "7"}], "seven|")
    assert rollout.streams == ["s:go.a:(HM)[LOOK].", "s:go.a:[look].r:7.a:SEVEN."]


def test_words_that_only_follow_a_turn_do_not_stand_for_its_thinking() -> None:
    rollout = Rollout(strips_thinking=True)
    messages: list[Message] = [{"role": "system", "content": "go"}]
    messages += rollout.ask(messages, "(7)[look]|")
    rollout.ask([*messages, {"role": "tool", "content": "7"}], "seven|")
    assert rollout.streams == ["s:go.a:(7)[LOOK].", "s:go.a:[look].r:7.a:SEVEN."]


def test_compaction_begins_a_new_sequence_and_keeps_the_old() -> None:
    rollout = Rollout()
    messages = [user("hi")]
    messages += rollout.ask(messages, "hello|")
    rollout.ask([*messages, user("more")], "most|")
    rollout.ask([user("we greeted; bye")], "ciao|")
    assert rollout.streams == ["u:hi.a:HELLO.u:more.a:MOST.", "u:we greeted; bye.a:CIAO."]


def test_a_tool_result_that_was_changed_is_not_extended() -> None:
    rollout = Rollout()
    messages = [user("hi")]
    messages += rollout.ask(messages, "[look]|")
    messages += [{"role": "tool", "content": "7"}]
    messages += rollout.ask(messages, "seven|")
    messages[2] = {"role": "tool", "content": "8"}
    rollout.ask([*messages, user("sure?")], "no|")
    assert rollout.streams[1:] == ["u:hi.a:[look].r:8.a:seven.u:sure?.a:NO."]


def test_a_message_edited_in_place_is_seen_as_edited() -> None:
    rollout = Rollout()
    messages = [user("hi")]
    messages += rollout.ask(messages, "hello|")
    messages[0]["content"] = "hey"
    rollout.ask([*messages, user("bye")], "ciao|")
    assert rollout.streams == ["u:hi.a:HELLO.", "u:hey.a:hello.u:bye.a:CIAO."]


def test_an_edit_deep_within_a_message_does_not_reach_the_record() -> None:
    rollout = Rollout()
    part = {"type": "text", "text": "hi"}
    message = {"role": "user", "content": "hi", "parts": [part]}
    rollout.ask([message], "hello|")
    part["text"] = "hey"
    assert rollout.recorder.sequences()[0].history[0]["parts"] == [{"type": "text", "text": "hi"}]


def test_a_fork_has_the_shared_turns_as_context_only() -> None:
    rollout = Rollout()
    messages = [user("hi")]
    messages += rollout.ask(messages, "hello|")
    rollout.ask([*messages, user("bye")], "ciao|")
    rollout.ask([*messages, user("stay")], "ok|")
    assert rollout.streams == ["u:hi.a:HELLO.u:bye.a:CIAO.", "u:hi.a:hello.u:stay.a:OK."]


def test_a_fork_keeps_the_marks_of_the_turns_it_shares() -> None:
    rollout = Rollout()
    messages = [user("hi")]
    messages += rollout.ask(messages, "hello|")
    rollout.ask([*messages, user("bye")], "ciao|")
    rollout.ask([*messages, user("stay")], "ok|")
    first, second = rollout.recorder.sequences()
    assert second.turns[0] == first.turns[0]


def test_a_fork_of_a_fork_goes_on_from_its_own_tokens() -> None:
    rollout = Rollout()
    messages = [user("hi")]
    messages += rollout.ask(messages, "hello|")
    rollout.ask([*messages, user("bye")], "ciao|")
    messages += [user("stay"), *rollout.ask([*messages, user("stay")], " ok|")]
    rollout.ask([*messages, user("why")], "so|")
    assert rollout.streams[1] == "u:hi.a:hello.u:stay.a: OK.u:why.a:SO."


def test_an_answer_to_an_overlapping_request_gets_a_sequence_of_its_own() -> None:
    recorder = Recorder(LetterFormat())
    recorder.record(recorder.prepare([user("hi")]), [said("hello|")], WARM)
    messages = [user("hi"), {"role": "assistant", "content": "hello"}, user("bye")]
    first, second = recorder.prepare(messages), recorder.prepare(messages)
    recorder.record(second, [said("two|")], WARM)
    recorder.record(first, [said("one|")], WARM)
    texts = [LetterFormat().decode(one.sequence.tokens) for one in recorder.sequences()]
    assert texts == ["u:hi|a:hello|u:bye|a:two|", "u:hi|a:hello|u:bye|a:one|"]


def called(rollout: Rollout) -> list[list[tuple[int, str]]]:
    """The number of each model call in each sequence, with the tokens from its first one to the next call's."""
    found = []
    for recorded in rollout.recorder.sequences():
        sequence = recorded.sequence
        ends = [*[call.begin for call in sequence.calls[1:]], len(sequence.tokens)]
        texts = [
            "".join(map(chr, sequence.tokens[call.begin : end])) for call, end in zip(sequence.calls, ends, strict=True)
        ]
        found.append([(call.call, text) for call, text in zip(sequence.calls, texts, strict=True)])
    return found


def test_sampled_tokens_are_marked_with_the_number_of_their_call() -> None:
    """Back to the first stream after another conversation, so the order of the streams is not that of the calls."""
    rollout = Rollout()
    messages = [user("hi")]
    messages += rollout.ask(messages, "hello|")
    rollout.ask([user("else")], "what|")
    rollout.ask([*messages, user("bye")], "ciao|")
    assert called(rollout) == [[(0, "hello|u:bye|a:"), (2, "ciao|")], [(1, "what|")]]


def test_an_answer_without_a_token_has_a_number_too() -> None:
    rollout = Rollout()
    rollout.ask([user("hi")], "")
    rollout.ask([user("hi")], "hello|")
    assert called(rollout) == [[(1, "hello|")]]


def test_completions_of_one_call_share_its_number_and_context_has_none() -> None:
    rollout = Rollout()
    messages = [user("hi")]
    messages += rollout.ask(messages, "hello|")
    rollout.ask([*messages, user("bye")], "one|", "two|")
    assert called(rollout) == [[(0, "hello|u:bye|a:"), (1, "one|")], [(1, "two|")]]


def test_calls_on_a_text_are_told_apart_without_a_token_between_them() -> None:
    rollout = Rollout()
    rollout.ask_text("a", "b")
    rollout.ask_text("ab", "c")
    assert called(rollout) == [[(0, "b"), (1, "c")]]


def test_each_of_n_completions_is_sampled_in_one_sequence() -> None:
    rollout = Rollout()
    messages = [user("hi")]
    messages += rollout.ask(messages, "hello|")
    rollout.ask([*messages, user("bye")], "one|", "two|", "one|")
    assert rollout.streams == [
        "u:hi.a:HELLO.u:bye.a:ONE.",
        "u:hi.a:hello.u:bye.a:TWO.",
        "u:hi.a:hello.u:bye.a:ONE.",
    ]


def test_each_of_n_completions_can_be_gone_on_from() -> None:
    rollout = Rollout()
    messages = [user("hi")]
    _, second = rollout.ask(messages, "one |", "two |")
    rollout.ask([*messages, second, user("more")], "ok|")
    assert rollout.streams == ["u:hi.a:ONE .", "u:hi.a:TWO .u:more.a:OK."]


def test_other_sampling_settings_begin_a_new_sequence_with_the_old_as_context() -> None:
    rollout = Rollout()
    messages = [user("hi")]
    messages += rollout.ask(messages, " hello|", sampling=WARM)
    rollout.ask([*messages, user("bye")], "ciao|", sampling=COLD)
    assert rollout.streams == ["u:hi.a: HELLO.", "u:hi.a: hello.u:bye.a:CIAO."]


def test_each_sequence_names_the_sampling_of_its_tokens() -> None:
    rollout = Rollout()
    messages = [user("hi")]
    messages += rollout.ask(messages, "hello|", sampling=WARM)
    rollout.ask([*messages, user("bye")], "ciao|", sampling=COLD)
    assert [one.sequence.sampling for one in rollout.recorder.sequences()] == [WARM, COLD]


def test_other_tools_begin_a_new_sequence() -> None:
    rollout = Rollout()
    messages = [user("hi")]
    messages += rollout.ask(messages, "hello|")
    rollout.ask([*messages, user("look")], "[look]|", tools=[TOOL])
    assert rollout.streams == ["u:hi.a:HELLO.", "t:look.u:hi.a:hello.u:look.a:[LOOK]."]


def test_tools_edited_in_place_begin_a_new_sequence() -> None:
    rollout = Rollout()
    tools: list[Any] = []
    messages = [user("hi")]
    messages += rollout.ask(messages, "hello|", tools=tools)
    tools.append(TOOL)
    rollout.ask([*messages, user("look")], "[look]|", tools=tools)
    assert rollout.streams == ["u:hi.a:HELLO.", "t:look.u:hi.a:hello.u:look.a:[LOOK]."]


def test_the_same_tools_in_another_list_are_the_same() -> None:
    rollout = Rollout()
    messages = [user("hi")]
    messages += rollout.ask(messages, "hello|", tools=[TOOL])
    rollout.ask([*messages, user("bye")], "ciao|", tools=(TOOL,))
    assert len(rollout.streams) == 1


def test_an_empty_completion_leaves_no_sequence() -> None:
    rollout = Rollout()
    rollout.ask([user("hi")], "")
    assert rollout.streams == []


def test_an_empty_completion_is_answered_as_an_empty_message() -> None:
    assert Rollout().ask([user("hi")], "") == [{"role": "assistant", "content": ""}]


def test_a_conversation_goes_on_after_an_empty_completion() -> None:
    rollout = Rollout()
    messages = [user("hi")]
    messages += rollout.ask(messages, "")
    rollout.ask([*messages, user("speak")], "ok|")
    assert rollout.streams == ["u:hi.a:.u:speak.a:OK."]


def test_marks_stand_in_the_order_of_the_turns() -> None:
    rollout = Rollout()
    messages = [user("hi")]
    for text in ("one|", "two|", "three|"):
        messages += [*rollout.ask(messages, text), user("on")]
    [one] = rollout.recorder.sequences()
    assert [LetterFormat().decode(one.sequence.tokens[mark.begin : mark.end]) for mark in one.turns] == [
        "one|",
        "two|",
        "three|",
    ]


def test_a_mark_counts_the_messages_up_to_its_own() -> None:
    rollout = Rollout()
    messages = [user("hi")]
    for text in ("one|", "two|"):
        messages += [*rollout.ask(messages, text), user("on")]
    [one] = rollout.recorder.sequences()
    assert [one.history[mark.messages - 1]["content"] for mark in one.turns] == ["one", "two"]


def test_the_stream_that_has_most_of_the_conversation_is_extended() -> None:
    rollout = Rollout()
    messages = [user("hi")]
    messages += rollout.ask(messages, " hello|")
    messages += [user("more"), *rollout.ask([*messages, user("more")], " most|")]
    rollout.ask([user("hi")], "hello |")
    rollout.ask([*messages, user("end")], "ok|")
    assert rollout.streams == ["u:hi.a: HELLO.u:more.a: MOST.u:end.a:OK.", "u:hi.a:HELLO ."]


def test_a_question_aside_does_not_break_the_main_line_apart() -> None:
    rollout = Rollout()
    messages = [user("hi")]
    messages += rollout.ask(messages, "hello|")
    rollout.ask([*messages, user("aside")], "yes|", sampling=COLD)
    rollout.ask([*messages, user("bye")], "ciao|")
    assert rollout.streams == ["u:hi.a:HELLO.u:bye.a:CIAO.", "u:hi.a:hello.u:aside.a:YES."]


def test_a_text_that_goes_on_from_a_stream_keeps_its_tokens() -> None:
    rollout = Rollout()
    rollout.ask_text("one,", " two,")
    rollout.ask_text("one, two, three,", " four")
    assert rollout.streams == ["one, TWO, three, FOUR"]


def test_ids_that_go_on_from_a_stream_keep_its_tokens() -> None:
    rollout = Rollout()
    rollout.ask_text(list(map(ord, "one,")), " two,")
    rollout.ask_text(list(map(ord, "one, two, three,")), " four")
    assert rollout.streams == ["one, TWO, three, FOUR"]


def test_another_text_begins_a_new_sequence() -> None:
    rollout = Rollout()
    rollout.ask_text("one,", " two,")
    rollout.ask_text("one, 2, three,", " four")
    assert rollout.streams == ["one, TWO,", "one, 2, three, FOUR"]


def test_a_text_has_no_conversation() -> None:
    rollout = Rollout()
    rollout.ask_text("one,", " two,")
    assert rollout.recorder.sequences()[0].history == []


def calling(arguments: str, call_id: str = "1", name: str = "look") -> Message:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}],
    }


def test_arguments_written_otherwise_say_the_same() -> None:
    assert same_message(calling('{"b":2,"a":1}'), calling('{"a": 1, "b": 2}'))


@pytest.mark.parametrize(
    "other",
    [calling('{"a": 2}'), calling('{"a": 1}', name="see"), calling('{"a": 1'), calling('{"a": 1}', call_id="2")],
    ids=["value", "name", "broken", "id"],
)
def test_another_call_does_not_say_the_same(other: Message) -> None:
    assert not same_message(other, calling('{"a": 1}'))


def test_call_ids_count_only_if_told() -> None:
    assert same_message(calling("{}", call_id="2"), calling("{}"), ids=False)


def test_a_call_without_a_name_does_not_count() -> None:
    assert same_message(calling("{}", name=""), {"role": "assistant", "content": ""})


def test_thinking_says_the_same_under_either_name() -> None:
    assert same_message(
        {"role": "assistant", "content": "a", "reasoning": "hm"},
        {"role": "assistant", "content": "a", "reasoning_content": "hm\n"},
    )
