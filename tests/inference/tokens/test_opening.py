"""A recorder that begins with the prompt of another one, in every family's template and renderer."""

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_rl.core.messages import Message, ToolCall
from hermes_rl.core.trajectory import Rollout, Sampling, StopReason
from hermes_rl.inference.tokens.chat_format import Reply
from hermes_rl.inference.tokens.recorder import Opening, Recorder, assistant_message
from hermes_rl.inference.tokens.token_check import WireLog
from hermes_rl.rollout.branch_points import branchable_turns, opening_of, past_of
from tests.support.conversations import SETTINGS, TOOLS, Setting, format_of
from tests.support.letter_format import LetterFormat, said
from tests.support.scripted_engine import WORDS, ScriptedEngine

WARM = Sampling(1.0)
QUESTION: list[Message] = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Look."}]


class Conversation:
    """An agent that sends back what it got, as our loop does, with results for the calls or another question."""

    def __init__(self, rng: Random, setting: Setting, opening: Opening | None = None) -> None:
        chat_format = format_of(setting)
        self.rng, self.recorder, self.ledger = rng, Recorder(chat_format), WireLog()
        self.engine = ScriptedEngine(rng, setting.model, chat_format.stop_token_ids)
        self.messages = list(QUESTION if opening is None else opening.messages)
        self.prompts: list[list[int]] = []
        if opening is not None:
            self.recorder.begin_with(opening)

    def turn(self) -> None:
        ask = self.recorder.prepare(self.messages, TOOLS)
        answer = self.engine.answer(ask.ids, 1, ask.tools)
        self.ledger.note(ask.ids, answer)
        self.prompts.append(ask.ids)
        [reply] = self.recorder.record(ask, answer.completions, WARM)
        self.messages += self._heard(reply)

    def _heard(self, reply: Reply) -> list[Message]:
        message = assistant_message(reply)
        if reply.calls:
            message["tool_calls"] += [ToolCall.make("", broken.text).as_dict() for broken in reply.broken]
        results: list[Message] = [
            {"role": "tool", "tool_call_id": call["id"], "content": self.rng.choice(WORDS) + str(place)}
            for place, call in enumerate(message.get("tool_calls", ()))
        ]
        return [message, *(results or [{"role": "user", "content": f"And then? {self.rng.choice(WORDS)}"}])]

    def finished(self) -> Rollout:
        checked = self.ledger.check(self.recorder.sequences(), self.recorder.format)
        return Rollout(
            item_id="i",
            index=0,
            seed=0,
            messages=self.messages,
            score=1.0,
            stop_reason=StopReason.NATURAL,
            sequences=checked.sequences,
            metadata={"prompt_length": len(QUESTION), "breaches": checked.breaches},
        )


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(rng=st.randoms(use_true_random=False))
def test_a_branch_begins_with_the_prompt_of_its_root_and_passes_the_same_checks(setting: Setting, rng: Random) -> None:
    original = Conversation(rng, setting)
    for _ in range(4):
        original.turn()
    root = original.finished()
    for turn in branchable_turns(root, ()):
        opening = opening_of(root, past_of(root, turn))
        branch = Conversation(rng, setting, opening)
        for _ in range(2):
            branch.turn()
        assert branch.prompts[0] == original.prompts[turn - 1] == list(opening.ids)
        made = branch.finished()
        if not root.metadata["breaches"]:
            assert made.metadata["breaches"] == ()
        for sequence in made.sequences:
            assert sequence.calls[0].call >= turn - 1
            if sequence.calls[0].call == turn - 1:
                assert sequence.tokens[: len(opening.ids)] == opening.ids
                assert not any(sequence.mask[: len(opening.ids)])


def ask(recorder: Recorder, messages: list[Message], answer: str) -> list[int]:
    prompt = recorder.prepare(messages)
    recorder.record(prompt, [said(answer)], WARM)
    return prompt.ids


def letters(text: str) -> list[int]:
    return list(map(ord, text))


def test_the_ids_of_an_opening_are_sent_also_where_the_template_would_write_others() -> None:
    recorder = Recorder(LetterFormat())
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    recorder.begin_with(Opening(letters("u:HI|a:"), messages, (), WARM))
    assert ask(recorder, messages, "yes|") == letters("u:HI|a:")
    later = [*messages, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "so"}]
    assert ask(recorder, later, "no|") == letters("u:HI|a:yes|u:so|a:")
    [recorded] = recorder.sequences()
    assert [(call, begin) for call, begin in recorded.sequence.calls] == [(0, 7), (1, 18)]


def test_another_conversation_than_that_of_the_opening_is_written_by_the_template() -> None:
    recorder = Recorder(LetterFormat())
    recorder.begin_with(Opening(letters("u:HI|a:"), [{"role": "user", "content": "hi"}], (), WARM))
    assert ask(recorder, [{"role": "user", "content": "shorter"}], "yes|") == letters("u:shorter|a:")
