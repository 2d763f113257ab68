"""Recorded groups as rows to train on, in the forms that TRL reads: conversations for SFT, pairs for DPO.

Only scored rollouts become rows, and never those of an evaluation; a pair is never without a difference. What is left
out is counted by reason. A file of rows is whole or not there.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Any, Protocol

from hermes_rl import jsontext
from hermes_rl.errors import ConfigError
from hermes_rl.messages import Message, ToolCall, content_text
from hermes_rl.store.records import RecordWriter, read_groups
from hermes_rl.trajectory import Group, Rollout

CHUNK = 1 << 20


class Left(StrEnum):
    """What gave no row, and why."""

    NOT_SCORED = "rollouts_without_a_score"
    NO_ANSWER = "rollouts_without_an_answer"
    BELOW_MIN_SCORE = "rollouts_below_min_score"
    NOT_THE_BEST = "rollouts_not_the_best"
    EVALUATION = "rollouts_of_evaluations"
    TOO_FEW_SCORED = "groups_with_fewer_than_two_scored"
    NO_DIFFERENCE = "groups_without_a_difference"
    PROMPTS_DIFFER = "pairs_of_different_prompts"


class Form(Protocol):
    """Makes the rows of one group, and counts what it leaves out."""

    def rows(self, group: Group, left_out: Counter[str]) -> Iterator[Mapping[str, Any]]: ...


@dataclass(frozen=True, slots=True)
class Sft:
    """A row for each scored rollout: `messages`, or `prompt` and `completion` when `split_prompt`."""

    min_score: float | None = None
    best: bool = False
    split_prompt: bool = False
    examples: bool = True

    def rows(self, group: Group, left_out: Counter[str]) -> Iterator[Mapping[str, Any]]:
        fit = []
        for rollout in _answered(group, left_out):
            if self.min_score is not None and _score(rollout) < self.min_score:
                left_out[Left.BELOW_MIN_SCORE] += 1
            else:
                fit.append(rollout)
        if self.best and fit:
            left_out[Left.NOT_THE_BEST] += len(fit) - 1
            fit = [max(fit, key=_score)]
        for rollout in fit:
            prompt, completion = conversation(rollout, examples=self.examples)
            parts = {"prompt": prompt, "completion": completion} if self.split_prompt else None
            yield {
                **(parts or {"messages": prompt + completion}),
                "tools": list(group.tool_schemas),
                "score": rollout.score,
                "item_id": group.item_id,
            }


@dataclass(frozen=True, slots=True)
class Dpo:
    """A row for the best and the worst rollout of a group, or for all pairs whose scores differ by `min_gap`."""

    min_gap: float = 0.0
    all_pairs: bool = False
    examples: bool = True

    def rows(self, group: Group, left_out: Counter[str]) -> Iterator[Mapping[str, Any]]:
        fit = list(_answered(group, left_out))
        if len(fit) < 2:
            left_out[Left.TOO_FEW_SCORED] += 1
            return
        if self.all_pairs:
            pairs: Iterable[tuple[Rollout, Rollout]] = product(fit, fit)
        else:
            pairs = [(max(fit, key=_score), min(fit, key=_score))]
        made = 0
        for better, worse in pairs:
            gap = _score(better) - _score(worse)
            if gap <= 0 or gap < self.min_gap:
                continue
            if (row := self._row(group, better, worse, left_out)) is not None:
                made += 1
                yield row
        if not made:
            left_out[Left.NO_DIFFERENCE] += 1

    def _row(self, group: Group, better: Rollout, worse: Rollout, left_out: Counter[str]) -> Mapping[str, Any] | None:
        prompt, chosen = conversation(better, examples=self.examples)
        other_prompt, rejected = conversation(worse, examples=self.examples)
        if prompt != other_prompt:
            left_out[Left.PROMPTS_DIFFER] += 1
            return None
        if _without_ids(chosen) == _without_ids(rejected):
            return None
        return {
            "prompt": prompt,
            "chosen": chosen,
            "rejected": rejected,
            "tools": list(group.tool_schemas),
            "chosen_score": better.score,
            "rejected_score": worse.score,
            "item_id": group.item_id,
        }


@dataclass(slots=True)
class Exported:
    """What an export did."""

    rows: int = 0
    groups: int = 0
    rollouts: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "groups": self.groups,
            "rollouts": self.rollouts,
            "left_out": dict(self.left_out),
        }


def export_groups(
    files: Sequence[Path],
    out: Path,
    form: Form,
    *,
    overwrite: bool = False,
    on_group: Callable[[Exported], object] = lambda _: None,
) -> Exported:
    """Write the rows of some files of groups, one group in memory at a time; without a row nothing is written."""
    _check(files, out, overwrite=overwrite)
    done = Exported()
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with RecordWriter(draft) as writer:
            for path in files:
                for group in read_groups(path):
                    done.groups += 1
                    done.rollouts += len(group.rollouts)
                    for row in _training_rows(group, form, done.left_out):
                        writer.write(row)
                        done.rows += 1
                    on_group(done)
        if done.rows:
            draft.replace(out)
    finally:
        draft.unlink(missing_ok=True)
    return done


def conversation(rollout: Rollout, *, examples: bool = True) -> tuple[list[Message], list[Message]]:
    """A rollout's prompt and what came after, as chat templates take them.

    Without `examples` the prompt is its system messages and its last message.
    """
    length = _prompt_length(rollout)
    names = {call.id: call.name for message in rollout.messages for call in _calls(message)}
    messages = [_plain(message, names) for message in rollout.messages]
    prompt, completion = messages[:length], messages[length:]
    if not examples:
        prompt = [message for message in prompt[:-1] if message["role"] == "system"] + prompt[-1:]
    return prompt, completion


def count_lines(path: Path) -> int:
    """The whole lines of a file, which are its groups: for a progress bar, far faster than reading them."""
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(CHUNK), b""))


def _check(files: Sequence[Path], out: Path, *, overwrite: bool) -> None:
    for path in files:
        if not path.is_file():
            raise ConfigError(f"there is no file {path}; `hermes-rl process` writes one")
        if out.exists() and path.samefile(out):
            raise ConfigError(f"{out} is one of the files to read; name another with -o")
    if out.exists() and not overwrite:
        raise ConfigError(f"{out} exists; pass --overwrite to replace it, or name another with -o")


def _training_rows(group: Group, form: Form, left_out: Counter[str]) -> Iterator[Mapping[str, Any]]:
    if group.split == "eval":
        left_out[Left.EVALUATION] += len(group.rollouts)
    else:
        yield from form.rows(group, left_out)


def _answered(group: Group, left_out: Counter[str]) -> Iterator[Rollout]:
    """The rollouts that can become rows: scored, with something said."""
    for rollout in group.rollouts:
        if not rollout.scored:
            left_out[Left.NOT_SCORED] += 1
        elif not any(message.get("role") == "assistant" for message in rollout.messages[_prompt_length(rollout) :]):
            left_out[Left.NO_ANSWER] += 1
        else:
            yield rollout


def _score(rollout: Rollout) -> float:
    return math.nan if rollout.score is None else rollout.score


def _prompt_length(rollout: Rollout) -> int:
    """How many messages the rollout began with; in a record that does not say, those before the first answer."""
    told = rollout.metadata.get("prompt_length")
    if isinstance(told, int):
        return told
    roles = [message.get("role") for message in rollout.messages]
    return roles.index("assistant") if "assistant" in roles else len(roles)


def _plain(message: Message, names: Mapping[str, str]) -> Message:
    # Templates join contents as text, and write a missing one as "None".
    content = message.get("content")
    pictures = isinstance(content, list) and any("text" not in part for part in content)
    row: Message = {"role": message.get("role", "user"), "content": content if pictures else content_text(content)}
    if reasoning := message.get("reasoning_content"):
        row["reasoning_content"] = reasoning
    if calls := _calls(message):
        row["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
            for call in calls
        ]
    if (call_id := message.get("tool_call_id")) is not None:
        row["tool_call_id"] = call_id
        row["name"] = names.get(call_id, "")
    return row


def _arguments(call: ToolCall) -> Any:
    """As an object, since templates write them as JSON themselves; the model's own text when it is none."""
    try:
        value = jsontext.loads(call.arguments)
    except ValueError:
        return call.arguments
    return value if isinstance(value, dict) else call.arguments


def _calls(message: Message) -> list[ToolCall]:
    return [ToolCall.of(raw) for raw in message.get("tool_calls") or ()]


def _without_ids(messages: Sequence[Message]) -> list[Message]:
    """Two conversations that differ in the names of their calls alone say the same."""
    return [
        {key: [call["function"] for call in value] if key == "tool_calls" else value for key, value in message.items()}
        | {"tool_call_id": None}
        for message in messages
    ]
