"""The run-time invariant catches faults planted in the recorder and in the formats, and only those."""

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from random import Random
from typing import NamedTuple

import pytest

from hermes_rl.core.messages import Message
from hermes_rl.core.trajectory import Sampling
from hermes_rl.inference.tokens import recorder
from hermes_rl.inference.tokens.chat_format import FormatSettings, Tools, Turn
from hermes_rl.inference.tokens.recorder import PreparedPrompt, RecordedSequence, Recorder
from hermes_rl.inference.tokens.recorder import _Stream as Stream
from hermes_rl.inference.tokens.sampled import Sampled
from hermes_rl.inference.tokens.template_format import TemplateFormat
from tests.support.conversations import Setting, format_of, new_format, play

CHATML, QWEN3 = Setting("chatml", "template"), Setting("qwen3", "template")
SEEDS = range(100)
Fault = Callable[[pytest.MonkeyPatch], None]


def doubled_end_token(patch: pytest.MonkeyPatch) -> None:
    def continuation(self: TemplateFormat, turn: Turn, new: Sequence[Message], tools: Tools) -> list[int] | None:
        ids = right(self, turn, new, tools)
        ended = turn.sampled[-1] in self.stop_token_ids
        return [turn.sampled[-1], *ids] if ids is not None and ended else ids

    right = TemplateFormat.continuation
    patch.setattr(TemplateFormat, "continuation", continuation)


def missing_end_token(patch: pytest.MonkeyPatch) -> None:
    def continuation(self: TemplateFormat, turn: Turn, new: Sequence[Message], tools: Tools) -> list[int] | None:
        ids = right(self, turn, new, tools)
        ended = turn.sampled[-1] in self.stop_token_ids
        return ids if ids is None or ended else ids[1:]

    right = TemplateFormat.continuation
    patch.setattr(TemplateFormat, "continuation", continuation)


def message_left_out_of_a_continuation(patch: pytest.MonkeyPatch) -> None:
    def continuation(self: TemplateFormat, turn: Turn, new: Sequence[Message], tools: Tools) -> list[int] | None:
        return right(self, turn, new[1:] or new, tools)

    right = TemplateFormat.continuation
    patch.setattr(TemplateFormat, "continuation", continuation)


def past_not_rewritten_as_the_template_does(patch: pytest.MonkeyPatch) -> None:
    def continuation(self: TemplateFormat, turn: Turn, new: Sequence[Message], tools: Tools) -> list[int] | None:
        return right(keeping, turn, new, tools)

    right = TemplateFormat.continuation
    keeping = TemplateFormat(QWEN3.model.tokenizer, FormatSettings(parser=QWEN3.model.parser, keep_reasoning=True))
    patch.setattr(TemplateFormat, "continuation", continuation)


def tool_result_left_out_of_a_prompt(patch: pytest.MonkeyPatch) -> None:
    def prompt(self: TemplateFormat, messages: Sequence[Message], tools: Tools) -> list[int]:
        return right(self, [message for message in messages if message["role"] != "tool"] or messages, tools)

    right = TemplateFormat.prompt
    patch.setattr(TemplateFormat, "prompt", prompt)


def mask_shifted_by_one(patch: pytest.MonkeyPatch) -> None:
    def add_sampled(self: Stream, sampled: Sampled) -> None:
        right(self, sampled)
        self.mask[-len(sampled.tokens) - 1 :] = [*([1] * len(sampled.tokens)), 0]

    right = Stream.add_sampled
    patch.setattr(Stream, "add_sampled", add_sampled)


def sampled_ids_tokenised_again(patch: pytest.MonkeyPatch) -> None:
    def add_sampled(self: Stream, sampled: Sampled) -> None:
        written = format_of(CHATML)
        tokens = tuple(written.encode(written.decode(sampled.tokens))) or sampled.tokens
        logprobs = tuple(islice(cycle(sampled.logprobs), len(tokens)))
        versions = tuple(islice(cycle(sampled.versions), len(tokens)))
        right(self, Sampled(tokens, logprobs, versions, sampled.finish))

    right = Stream.add_sampled
    patch.setattr(Stream, "add_sampled", add_sampled)


def history_tokenised_again(patch: pytest.MonkeyPatch) -> None:
    def ask(self: Recorder, messages: Sequence[Message], tools: Tools = ()) -> PreparedPrompt:
        asked = right(self, messages, tools)
        written = self.format
        return asked._replace(ids=written.encode(written.decode(asked.ids)))

    right = Recorder.prepare
    patch.setattr(Recorder, "prepare", ask)


def only_the_last_sequence_kept(patch: pytest.MonkeyPatch) -> None:
    def recorded(self: Recorder) -> list[RecordedSequence]:
        return right(self)[-1:]

    right = Recorder.sequences
    patch.setattr(Recorder, "sequences", recorded)


def logprobs_of_the_turn_before(patch: pytest.MonkeyPatch) -> None:
    def add_sampled(self: Stream, sampled: Sampled) -> None:
        before = [logprob for logprob in self.logprobs if logprob is not None] or sampled.logprobs
        right(self, sampled._replace(logprobs=tuple(islice(cycle(before), len(sampled.tokens)))))

    right = Stream.add_sampled
    patch.setattr(Stream, "add_sampled", add_sampled)


def logprobs_missing(patch: pytest.MonkeyPatch) -> None:
    def add_sampled(self: Stream, sampled: Sampled) -> None:
        right(self, sampled)
        self.logprobs[-1] = None

    right = Stream.add_sampled
    patch.setattr(Stream, "add_sampled", add_sampled)


def version_of_the_last_token_for_all(patch: pytest.MonkeyPatch) -> None:
    def add_sampled(self: Stream, sampled: Sampled) -> None:
        right(self, sampled._replace(versions=sampled.versions[-1:] * len(sampled.tokens)))

    right = Stream.add_sampled
    patch.setattr(Stream, "add_sampled", add_sampled)


def stream_reused_after_an_edit(patch: pytest.MonkeyPatch) -> None:
    def alike(messages: Sequence[Message], stream: Stream) -> int:
        return min(len(messages), len(stream.history))

    patch.setattr(recorder, "_shared_length", alike)


def fork_trains_on_what_it_shares(patch: pytest.MonkeyPatch) -> None:
    def stream_for(self: Recorder, ask: PreparedPrompt, sampling: Sampling) -> Stream:
        stream = right(self, ask, sampling)
        if stream is not ask.stream and ask.stream is not None:
            shared = slice(0, ask.at)
            for column in ("mask", "logprobs", "versions"):
                getattr(stream, column)[shared] = getattr(ask.stream, column)[shared]
        return stream

    right = Recorder._stream_for
    patch.setattr(Recorder, "_stream_for", stream_for)


def overlapping_answers_in_one_stream(patch: pytest.MonkeyPatch) -> None:
    def stream_for(self: Recorder, ask: PreparedPrompt, sampling: Sampling) -> Stream:
        if ask.stream is None:
            return right(self, ask, sampling)
        ask.stream.add_context(ask.ids[ask.at :])
        return ask.stream

    right = Recorder._stream_for
    patch.setattr(Recorder, "_stream_for", stream_for)


class Planted(NamedTuple):
    plant: Fault
    cause: str
    """What the breach is counted as."""
    setting: Setting = CHATML


FAULTS = [
    Planted(doubled_end_token, "transcript"),
    Planted(missing_end_token, "transcript"),
    Planted(message_left_out_of_a_continuation, "transcript"),
    Planted(past_not_rewritten_as_the_template_does, "transcript", QWEN3),
    Planted(tool_result_left_out_of_a_prompt, "transcript", QWEN3),
    Planted(mask_shifted_by_one, "mask"),
    Planted(sampled_ids_tokenised_again, "mask"),
    Planted(history_tokenised_again, "mask"),
    Planted(only_the_last_sequence_kept, "lost"),
    Planted(logprobs_of_the_turn_before, "logprobs"),
    Planted(logprobs_missing, "logprobs"),
    Planted(version_of_the_last_token_for_all, "versions"),
    Planted(stream_reused_after_an_edit, "transcript"),
    Planted(fork_trains_on_what_it_shares, "mask"),
    Planted(overlapping_answers_in_one_stream, "mask"),
]


@pytest.mark.parametrize("planted", FAULTS, ids=[fault.plant.__name__ for fault in FAULTS])
def test_a_planted_fault_is_caught(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    # A format of its own, lest what it learns from the fault stays.
    own = new_format(planted.setting)

    def causes(seed: int) -> list[str]:
        return [breach.cause for breach in play(Random(seed), planted.setting, own).checked().breaches]

    with monkeypatch.context() as patch:
        planted.plant(patch)
        seed = next((seed for seed in SEEDS if planted.cause in causes(seed)), None)
    assert seed is not None
    own = new_format(planted.setting)
    assert causes(seed) == []
