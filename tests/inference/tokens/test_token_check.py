"""Each way a record can be untrue, with the evidence that the ledger gives for it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hermes_rl.core.errors import EnvironmentCodeError
from hermes_rl.core.messages import Message
from hermes_rl.core.trajectory import Sampling
from hermes_rl.inference.tokens.chat_format import Tools
from hermes_rl.inference.tokens.recorder import RecordedSequence, Recorder, assistant_message
from hermes_rl.inference.tokens.sampled import EngineAnswer, Sampled
from hermes_rl.inference.tokens.token_check import Breach, Checked, WireLog
from tests.support.letter_format import LetterFormat, said

WARM, COLD = Sampling(1.0), Sampling(0.5)
# Where the first sampled token of `two_turns` stands: after "u:hi|a:".
FIRST = 7


class Rollout:
    """A recorder and a ledger that hear the same."""

    def __init__(self) -> None:
        self.format = LetterFormat()
        self.recorder = Recorder(self.format)
        self.ledger = WireLog()

    def ask(
        self,
        messages: list[Message],
        *completions: Sampled,
        sampling: Sampling = WARM,
        answer: Callable[[list[int], tuple[Sampled, ...]], EngineAnswer] = lambda ids, sampled: EngineAnswer(
            sampled, tuple(ids)
        ),
    ) -> list[Message]:
        ask = self.recorder.prepare(messages)
        self.ledger.note(ask.ids, answer(ask.ids, completions))
        return [assistant_message(reply) for reply in self.recorder.record(ask, completions, sampling)]

    @property
    def recorded(self) -> list[RecordedSequence]:
        return self.recorder.sequences()

    def check(self, recorded: Sequence[RecordedSequence] | None = None) -> Checked:
        return self.ledger.check(self.recorded if recorded is None else recorded, self.format)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def two_turns() -> Rollout:
    rollout = Rollout()
    messages = [user("hi")]
    messages += rollout.ask(messages, said("hello|", -0.5, 3))
    rollout.ask([*messages, user("bye")], said("ciao|", -2.5, 4))
    return rollout


def changed(rollout: Rollout, **columns: Any) -> list[RecordedSequence]:
    """The one record of a rollout, with some columns of its sequence put to something else."""
    [one] = rollout.recorded
    return [one._replace(sequence=replace(one.sequence, **columns))]


def only_breach(checked: Checked) -> Breach:
    [breach] = checked.breaches
    return breach


def test_a_true_record_has_no_breach() -> None:
    assert two_turns().check().breaches == ()


def test_a_true_record_is_kept_whole() -> None:
    rollout = two_turns()
    assert rollout.check().sequences == tuple(one.sequence for one in rollout.recorded)


def test_checking_again_says_the_same() -> None:
    rollout = two_turns()
    assert rollout.check() == rollout.check()


def test_forks_and_n_completions_hold() -> None:
    rollout = Rollout()
    messages = [user("hi")]
    first, *_ = rollout.ask(messages, said("one|"), said("two|"), said("two|"))
    rollout.ask([*messages, first, user("a")], said("x|"), sampling=COLD)
    rollout.ask([*messages, first, user("b")], said("y|"))
    checked = rollout.check()
    assert not checked.breaches and len(checked.sequences) == 4


def test_the_same_tokens_sampled_twice_are_told_apart_by_their_logprobs() -> None:
    rollout = Rollout()
    messages = [user("hi")]
    messages += rollout.ask(messages, said("hello|"))
    rollout.ask([*messages, user("bye")], said("ok|", -1.5), sampling=COLD)
    rollout.ask([*messages, user("bye")], said("ok|", -2.5), sampling=WARM)
    assert rollout.check().breaches == ()


def test_a_completion_that_begins_as_a_longer_one_does_is_told_from_it() -> None:
    rollout = Rollout()
    rollout.ask([user("hi")], said("hel", -1.5), said("hello|", -2.5), said("hell", -3.5))
    assert rollout.check().breaches == ()


def test_a_prompt_the_engine_read_otherwise_is_a_breach() -> None:
    rollout = Rollout()
    rollout.ask([user("hi")], said("a|"), answer=lambda ids, sampled: EngineAnswer(sampled, (*ids[:3], 0, *ids[4:])))
    breach = only_breach(rollout.check())
    assert (breach.cause, breach.evidence["at"]) == ("prompt_ids", 3)


def test_a_prompt_of_another_length_is_a_breach() -> None:
    rollout = Rollout()
    rollout.ask([user("hi")], said("a|"), answer=lambda ids, sampled: EngineAnswer(sampled, None, len(ids) + 1))
    breach = only_breach(rollout.check())
    assert (breach.cause, breach.evidence) == ("prompt_ids", {"sent": 7, "read": 8})


def test_an_engine_that_does_not_tell_its_prompt_is_believed() -> None:
    rollout = Rollout()
    rollout.ask([user("hi")], said("a|"), answer=lambda ids, sampled: EngineAnswer(sampled))
    assert rollout.check().breaches == ()


@pytest.mark.parametrize("value", [math.nan, -math.inf, 0.5])
def test_a_number_that_is_no_logprob_is_a_breach(value: float) -> None:
    rollout = Rollout()
    rollout.ask([user("hi")], said("a|")._replace(logprobs=(-1.0, value)))
    breach = only_breach(rollout.check())
    assert (breach.cause, breach.evidence) == ("logprobs", {"count": 1})


def test_a_logprob_of_rounding_above_zero_is_none() -> None:
    rollout = Rollout()
    rollout.ask([user("hi")], said("a|")._replace(logprobs=(-1.0, 1e-6)))
    assert rollout.check().breaches == ()


def test_logprobs_of_another_turn_are_a_breach() -> None:
    rollout = two_turns()
    [one] = rollout.recorded
    logprobs = list(one.sequence.logprobs)
    logprobs[FIRST] = -2.5
    breach = only_breach(rollout.check(changed(rollout, logprobs=tuple(logprobs))))
    assert (breach.cause, breach.evidence["at"], breach.evidence["wire"][0], breach.evidence["kept"][0]) == (
        "logprobs",
        FIRST,
        -0.5,
        -2.5,
    )


def test_a_version_of_another_turn_is_a_breach() -> None:
    rollout = two_turns()
    [one] = rollout.recorded
    versions = tuple(version and 4 for version in one.sequence.versions)
    breach = only_breach(rollout.check(changed(rollout, versions=versions)))
    assert (breach.cause, breach.evidence["wire"][0], breach.evidence["kept"][0]) == ("versions", 3, 4)


@pytest.mark.parametrize("column", ["logprobs", "versions"])
def test_a_value_on_a_token_that_was_not_sampled_is_a_breach(column: str) -> None:
    rollout = two_turns()
    [one] = rollout.recorded
    values = (-1, *getattr(one.sequence, column)[1:])
    assert only_breach(rollout.check(changed(rollout, **{column: values}))).cause == column


def test_a_mask_shifted_by_one_is_a_breach() -> None:
    rollout = two_turns()
    [one] = rollout.recorded
    breach = only_breach(rollout.check(changed(rollout, mask=(*one.sequence.mask[1:], 0))))
    assert (breach.cause, breach.evidence["at"]) == ("mask", FIRST - 1)


def test_a_mask_on_context_is_a_breach() -> None:
    rollout = two_turns()
    [one] = rollout.recorded
    breach = only_breach(rollout.check(changed(rollout, mask=(1, *one.sequence.mask[1:]))))
    assert (breach.cause, breach.evidence["at"]) == ("mask", 0)


def test_a_token_that_was_not_sent_is_a_breach() -> None:
    rollout = two_turns()
    [one] = rollout.recorded
    breach = only_breach(rollout.check(changed(rollout, tokens=(0, *one.sequence.tokens[1:]))))
    assert (breach.cause, breach.evidence["at"]) == ("mask", FIRST)


def test_a_token_that_was_not_sampled_is_a_breach() -> None:
    rollout = two_turns()
    [one] = rollout.recorded
    tokens = list(one.sequence.tokens)
    tokens[FIRST] = ord("j")
    assert only_breach(rollout.check(changed(rollout, tokens=tuple(tokens)))).cause == "mask"


def test_a_turn_trained_on_twice_is_a_breach() -> None:
    rollout = two_turns()
    [one] = rollout.recorded
    assert only_breach(rollout.check([one, one])).cause == "mask"


def test_a_sequence_that_is_missing_is_a_breach() -> None:
    rollout = two_turns()
    rollout.ask([user("anew")], said("ok|"))
    breach = only_breach(rollout.check(rollout.recorded[:1]))
    assert (breach.cause, breach.evidence["sampled"]) == ("lost", [ord("o"), ord("k"), ord("|")])


def test_a_sequence_that_is_missing_does_not_cost_the_others() -> None:
    rollout = two_turns()
    rollout.ask([user("anew")], said("ok|"))
    assert len(rollout.check(rollout.recorded[:1]).sequences) == 1


def test_only_the_sequence_that_does_not_hold_is_left_out() -> None:
    rollout = two_turns()
    rollout.ask([user("anew")], said("ok|"))
    first, second = rollout.recorded
    broken = first._replace(sequence=replace(first.sequence, mask=(1, *first.sequence.mask[1:])))
    assert rollout.check([broken, second]).sequences == (second.sequence,)


def test_a_turn_that_says_something_else_than_its_message_is_a_breach() -> None:
    rollout = two_turns()
    [one] = rollout.recorded
    history = [one.history[0], {"role": "assistant", "content": "hullo"}, *one.history[2:]]
    breach = only_breach(rollout.check([one._replace(history=history)]))
    assert (breach.cause, breach.evidence["kept"], breach.evidence["said"]["content"]) == (
        "transcript",
        "hello|",
        "hullo",
    )


@pytest.mark.parametrize(
    "history",
    [
        [user("hi"), {"role": "assistant", "content": "hello"}, user("bye!"), {"role": "assistant", "content": "ciao"}],
        [
            user("hi"),
            {"role": "assistant", "content": "hello"},
            user("so"),
            user("bye"),
            {"role": "assistant", "content": "ciao"},
        ],
    ],
    ids=["another message", "a message more"],
)
def test_context_that_is_not_what_the_template_writes_is_a_breach(history: list[Message]) -> None:
    rollout = two_turns()
    [one] = rollout.recorded
    turns = [one.turns[0], one.turns[1]._replace(messages=len(history))]
    breach = only_breach(rollout.check([one._replace(history=history, turns=turns)]))
    assert (breach.cause, breach.evidence["kept"]) == ("transcript", "u:bye|a:")


class KeepingFormat(LetterFormat):
    """Goes on after a turn although the template would leave its thinking out."""

    def continuation(self, *turn: Any) -> list[int] | None:
        return LetterFormat().continuation(*turn)


def test_thinking_that_the_template_leaves_out_is_a_breach() -> None:
    rollout = Rollout()
    rollout.format = KeepingFormat(strips_thinking=True)
    rollout.recorder = Recorder(rollout.format)
    messages = [user("hi")]
    messages += rollout.ask(messages, said("(hm)hello|"))
    rollout.ask([*messages, user("bye")], said("ciao|"))
    breach = only_breach(rollout.check())
    assert (breach.cause, breach.evidence["template"]) == ("transcript", "hello|u:bye|a:")


class DoublingFormat(LetterFormat):
    def continuation(self, *turn: Any) -> list[int]:
        return [*self.stop_token_ids, *(super().continuation(*turn) or ())]


def test_a_doubled_end_token_is_a_breach() -> None:
    rollout = Rollout()
    rollout.format = DoublingFormat()
    rollout.recorder = Recorder(rollout.format)
    messages = [user("hi")]
    messages += rollout.ask(messages, said("hello|"))
    rollout.ask([*messages, user("bye")], said("ciao|"))
    breach = only_breach(rollout.check())
    assert (breach.cause, breach.evidence["kept"]) == ("transcript", "|u:bye|a:")


class RefusingFormat(LetterFormat):
    def transcript(self, messages: Sequence[Message], tools: Tools) -> str:
        raise EnvironmentCodeError("unrenderable", "roles must alternate")


def test_a_conversation_that_cannot_be_rendered_is_a_breach() -> None:
    rollout = two_turns()
    rollout.format = RefusingFormat()
    assert "roles must alternate" in only_breach(rollout.check()).message


class NormalisingFormat(LetterFormat):
    """As a tokenizer that writes all letters small."""

    def encode(self, text: str) -> list[int]:
        return super().encode(text.lower())


def test_text_that_the_tokenizer_normalises_holds() -> None:
    rollout = Rollout()
    rollout.format = NormalisingFormat()
    rollout.recorder = Recorder(rollout.format)
    messages = [user("Hi")]
    messages += rollout.ask(messages, said("hello|"))
    rollout.ask([*messages, user("Bye")], said("ciao|"))
    assert rollout.check().breaches == ()


def test_a_prompt_given_as_text_has_no_transcript_to_hold() -> None:
    rollout = Rollout()
    ask = rollout.recorder.prepare_text("one,")
    rollout.ledger.note(ask.ids, EngineAnswer((said(" two"),)))
    rollout.recorder.record(ask, [said(" two")], WARM)
    assert rollout.check().breaches == ()


def test_long_texts_are_shortened_in_the_evidence() -> None:
    rollout = Rollout()
    rollout.ask([user("hi")], said("a" * 1000 + "|"))
    [one] = rollout.recorded
    breach = only_breach(rollout.check([one._replace(history=[user("hi"), {"role": "assistant", "content": "b"}])]))
    assert len(breach.evidence["kept"]) < 200


def test_an_empty_completion_is_nothing_to_find() -> None:
    rollout = Rollout()
    rollout.ask([user("hi")], said(""))
    assert rollout.check() == Checked()


def test_columns_of_different_lengths_are_a_breach() -> None:
    rollout = Rollout()
    rollout.ask([user("hi")], said("ab|")._replace(logprobs=(-1.0,)))
    breach = only_breach(rollout.check())
    assert (breach.cause, breach.message) == ("lengths", "the engine's columns have lengths [1, 3]")
