"""What a trainer learns from recorded sequences: a real step in torch, beside every sampled token scored by itself."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.messages import Message
from hermes_rl.core.trajectory import Sampling
from hermes_rl.core.trajectory import Sequence as TokenSequence
from hermes_rl.inference.tokens.chat_format import FormatSettings
from hermes_rl.inference.tokens.recorder import Recorder, assistant_message
from hermes_rl.inference.tokens.renderer_format import RendererFormat
from hermes_rl.inference.tokens.sampled import EngineAnswer, Finish, Sampled
from hermes_rl.inference.tokens.token_check import WireLog
from tests.support.chat_models import VOCABULARY, chat_model

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(2400)]

MODEL = chat_model("qwen3")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "terminal",
            "description": "Run a command.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
        },
    }
]
CALL = '<tool_call>\n{"name": "terminal", "arguments": {"command": "ls -la"}}\n</tool_call>'
DRAWN = None
# A group of two: one rollout was better than the other.
ADVANTAGES = (1.0, -0.5)


@dataclass
class Policy:
    """tiny_policy.py as a process: a line in, a line out."""

    process: subprocess.Popen[str]

    def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        print(json.dumps({verb: arguments}), file=self.process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


@dataclass
class RecordedRollout:
    """A rollout that is recorded, and beside it what the engine was given and gave, completion by completion."""

    policy: Policy
    completions: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.format = RendererFormat(MODEL.tokenizer, FormatSettings(renderer="qwen3"))
        self.recorder, self.ledger = Recorder(self.format), WireLog()

    def say(self, messages: Sequence[Message], *drafts: list[int | None]) -> list[list[Message]]:
        """The conversation with each of the sampled answers."""
        ask = self.recorder.prepare(messages, TOOLS)
        heard = [self.policy.ask("sample", prompt=ask.ids, draft=draft, words=VOCABULARY) for draft in drafts]
        self.completions += [{"prompt": ask.ids, **one} for one in heard]
        sampled = [
            Sampled(tuple(one["tokens"]), tuple(one["logprobs"]), (1,) * len(one["tokens"]), Finish.STOP)
            for one in heard
        ]
        self.ledger.note(ask.ids, EngineAnswer(tuple(sampled), tuple(ask.ids)))
        replies = self.recorder.record(ask, sampled, Sampling(temperature=1.0))
        return [[*messages, assistant_message(reply)] for reply in replies]

    @cached_property
    def sequences(self) -> tuple[TokenSequence, ...]:
        checked = self.ledger.check(self.recorder.sequences(), self.format)
        assert not checked.breaches
        return checked.sequences


def ids(text: str) -> list[int]:
    tokens: list[int] = MODEL.tokenizer.encode(text, add_special_tokens=False)
    return tokens


def thinks(words: int, then: list[int | None]) -> list[int | None]:
    return [*ids("<think>\n"), *[DRAWN] * words, *ids("\n</think>\n\n"), *then, *ids("<|im_end|>")]


def result(conversation: list[Message], text: str) -> list[Message]:
    call = conversation[-1]["tool_calls"][0]
    return [*conversation, {"role": "tool", "tool_call_id": call["id"], "content": text}]


def play(policy: Policy) -> RecordedRollout:
    """Two samples of one prompt, both gone on from; another end to the first; a new question; a summary."""
    rollout = RecordedRollout(policy)
    question = {"role": "user", "content": "What is in the folder?"}
    called = thinks(9, [*ids(CALL)])
    one, other = rollout.say([question], called, called)
    [answered] = rollout.say(result(one, "notes.txt"), thinks(7, [DRAWN] * 12))
    rollout.say(result(other, "notes.txt hello"), thinks(5, [DRAWN] * 8))
    rollout.say(result(one, "No such file"), thinks(6, [DRAWN] * 11))
    # The template drops the thinking of the turns before a new question.
    rollout.say([*answered, {"role": "user", "content": "And now?"}], thinks(4, [DRAWN] * 9))
    rollout.say([{"role": "user", "content": "So far: a folder, a file. Go on."}], [*[DRAWN] * 10, *ids("<|im_end|>")])
    return rollout


@pytest.fixture(scope="module")
def policy() -> Iterator[Policy]:
    home = subprocess.check_output([ROOT / "scripts" / "engine_environment", "vllm"], text=True, timeout=2200).strip()
    with subprocess.Popen(
        [f"{home}/bin/python", str(Path(__file__).with_name("tiny_policy.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        print(json.dumps({"vocabulary": len(MODEL.tokenizer)}), file=process.stdin, flush=True)
        yield Policy(process)
        process.stdin.close()
        assert process.wait(30) == 0


@pytest.fixture(scope="module")
def group(policy: Policy) -> list[RecordedRollout]:
    return [play(policy) for _ in ADVANTAGES]


def rows(sequences: Sequence[TokenSequence], advantage: float) -> list[dict[str, Any]]:
    return [
        {"tokens": one.tokens, "mask": one.mask, "logprobs": one.logprobs, "advantage": advantage} for one in sequences
    ]


def compared(policy: Policy, group: list[RecordedRollout], batch: list[dict[str, Any]]) -> dict[str, float]:
    completions = [
        {**completion, "advantage": advantage}
        for rollout, advantage in zip(group, ADVANTAGES, strict=True)
        for completion in rollout.completions
    ]
    found = policy.ask("compare", batch=batch, completions=completions)
    print(found)
    return found


@pytest.fixture(scope="module")
def step(policy: Policy, group: list[RecordedRollout]) -> dict[str, float]:
    batch = [row for rollout, value in zip(group, ADVANTAGES, strict=True) for row in rows(rollout.sequences, value)]
    return compared(policy, group, batch)


def test_the_rollout_has_a_sequence_for_each_way_its_history_parted(group: list[RecordedRollout]) -> None:
    assert [len(rollout.sequences) for rollout in group] == [5, 5]


def test_every_sampled_token_is_trained_on_once(group: list[RecordedRollout]) -> None:
    for rollout in group:
        trained = sum(sum(sequence.mask) for sequence in rollout.sequences)
        assert trained == sum(len(completion["tokens"]) for completion in rollout.completions)


def test_a_step_on_the_sequences_has_the_gradient_of_the_tokens_scored_one_by_one(step: dict[str, float]) -> None:
    assert step["difference"] < 1e-5


def test_the_recorded_logprobs_are_the_models(step: dict[str, float]) -> None:
    assert step["logprob_difference"] < 1e-5


def test_the_gradient_is_large_enough_to_tell(step: dict[str, float]) -> None:
    assert step["largest"] > 0.1


def test_a_turn_counted_in_both_branches_would_show(policy: Policy, group: list[RecordedRollout]) -> None:
    batch = [
        row
        for rollout, value in zip(group, ADVANTAGES, strict=True)
        for row in counted_twice(rows(rollout.sequences, value))
    ]
    assert compared(policy, group, batch)["difference"] > 1e-3


def counted_twice(batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with each beginning that two of them share trained on in both."""
    wrong = [{**row, "mask": list(row["mask"]), "logprobs": list(row["logprobs"])} for row in batch]
    for row in wrong:
        for other in batch:
            for place, (one, same) in enumerate(zip(row["tokens"], other["tokens"], strict=False)):
                if one != same:
                    break
                if other["mask"][place]:
                    row["mask"][place], row["logprobs"][place] = 1, other["logprobs"][place]
    return wrong
