"""Exports recorded groups as TRL training data: conversations for SFT, pairs for DPO.

Always true: only scored rollouts become rows, and never those of an evaluation; the two sides of a pair differ; skipped
rollouts are counted by reason; the output file is complete or absent.
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

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.messages import Message, ToolCall, content_text
from hermes_rl.core.trajectory import Group, Rollout
from hermes_rl.store.records import RecordWriter, read_groups

CHUNK = 1 << 20


class SkipReason(StrEnum):
    """Why a rollout, group or pair gave no row."""

    NOT_SCORED = "rollouts_without_a_score"
    NO_ANSWER = "rollouts_without_an_answer"
    BELOW_MIN_SCORE = "rollouts_below_min_score"
    NOT_THE_BEST = "rollouts_not_the_best"
    EVALUATION = "rollouts_of_evaluations"
    TOO_FEW_SCORED = "groups_with_fewer_than_two_scored"
    NO_DIFFERENCE = "groups_without_a_difference"
    PROMPTS_DIFFER = "pairs_of_different_prompts"


class RowWriter(Protocol):
    """Makes the rows of one group, and counts what it skips."""

    def rows(self, group: Group, left_out: Counter[str]) -> Iterator[Mapping[str, Any]]: ...


@dataclass(frozen=True, slots=True)
class Sft:
    """A row for each scored rollout: `messages`, or `prompt` and `completion` when `split_prompt`."""

    min_score: float | None = None
    best: bool = False
    split_prompt: bool = False
    examples: bool = True

    def rows(self, group: Group, left_out: Counter[str]) -> Iterator[Mapping[str, Any]]:
        usable = []
        for rollout in _usable_rollouts(group, left_out):
            if self.min_score is not None and _score(rollout) < self.min_score:
                left_out[SkipReason.BELOW_MIN_SCORE] += 1
            else:
                usable.append(rollout)
        if self.best and usable:
            left_out[SkipReason.NOT_THE_BEST] += len(usable) - 1
            usable = [max(usable, key=_score)]
        for rollout in usable:
            prompt, completion = split_conversation(rollout, examples=self.examples)
            parts = {"prompt": prompt, "completion": completion} if self.split_prompt else None
            yield {
                **(parts or {"messages": prompt + completion}),
                "tools": group.schemas_of(rollout),
                "score": rollout.score,
                "item_id": group.item_id,
            }


@dataclass(frozen=True, slots=True)
class Dpo:
    """A row for the best and worst rollout of a group, or for all pairs whose scores differ by `min_gap`."""

    min_gap: float = 0.0
    all_pairs: bool = False
    examples: bool = True

    def rows(self, group: Group, left_out: Counter[str]) -> Iterator[Mapping[str, Any]]:
        usable = list(_usable_rollouts(group, left_out))
        if len(usable) < 2:
            left_out[SkipReason.TOO_FEW_SCORED] += 1
            return
        if self.all_pairs:
            pairs: Iterable[tuple[Rollout, Rollout]] = product(usable, usable)
        else:
            pairs = [(max(usable, key=_score), min(usable, key=_score))]
        made = 0
        for better, worse in pairs:
            gap = _score(better) - _score(worse)
            if gap <= 0 or gap < self.min_gap:
                continue
            if (row := self._row(group, better, worse, left_out)) is not None:
                made += 1
                yield row
        if not made:
            left_out[SkipReason.NO_DIFFERENCE] += 1

    def _row(self, group: Group, better: Rollout, worse: Rollout, left_out: Counter[str]) -> Mapping[str, Any] | None:
        prompt, chosen = split_conversation(better, examples=self.examples)
        other_prompt, rejected = split_conversation(worse, examples=self.examples)
        if prompt != other_prompt:
            left_out[SkipReason.PROMPTS_DIFFER] += 1
            return None
        if _without_ids(chosen) == _without_ids(rejected):
            return None
        return {
            "prompt": prompt,
            "chosen": chosen,
            "rejected": rejected,
            "tools": group.schemas_of(better),
            "chosen_score": better.score,
            "rejected_score": worse.score,
            "item_id": group.item_id,
        }


@dataclass(slots=True)
class ExportedRows:
    """Counts of an export."""

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
    form: RowWriter,
    *,
    overwrite: bool = False,
    on_group: Callable[[ExportedRows], object] = lambda _: None,
) -> ExportedRows:
    """Write the rows of group files, with one group in memory at a time; no file when there are no rows."""
    _check(files, out, overwrite=overwrite)
    done = ExportedRows()
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with RecordWriter(draft, exported=True) as writer:
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


def split_conversation(rollout: Rollout, *, examples: bool = True) -> tuple[list[Message], list[Message]]:
    """A rollout's prompt and completion, in the format of chat templates.

    Without `examples` the prompt is only its system messages and its last message.
    """
    length = _prompt_length(rollout)
    names = {call.id: call.name for message in rollout.messages for call in _tool_calls(message)}
    messages = [_template_message(message, names) for message in rollout.messages]
    prompt, completion = messages[:length], messages[length:]
    if not examples:
        prompt = [message for message in prompt[:-1] if message["role"] == "system"] + prompt[-1:]
    return prompt, completion


def count_lines(path: Path) -> int:
    """The number of groups in a file, for a progress bar; far faster than reading them."""
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(CHUNK), b""))


def _check(files: Sequence[Path], out: Path, *, overwrite: bool) -> None:
    for path in files:
        if not path.is_file():
            raise ConfigError(f"{path} does not exist; `hermes-rl process` writes group files")
        if out.exists() and path.samefile(out):
            raise ConfigError(f"{out} is also an input file; choose another output with -o")
    if out.exists() and not overwrite:
        raise ConfigError(f"{out} exists; pass --overwrite to replace it, or choose another output with -o")


def _training_rows(group: Group, form: RowWriter, left_out: Counter[str]) -> Iterator[Mapping[str, Any]]:
    if group.split == "eval":
        left_out[SkipReason.EVALUATION] += len(group.rollouts)
    else:
        yield from form.rows(group, left_out)


def _usable_rollouts(group: Group, left_out: Counter[str]) -> Iterator[Rollout]:
    """The rollouts that can become rows: scored, with an assistant message."""
    for rollout in group.rollouts:
        if not rollout.scored:
            left_out[SkipReason.NOT_SCORED] += 1
        elif not any(message.get("role") == "assistant" for message in rollout.messages[_prompt_length(rollout) :]):
            left_out[SkipReason.NO_ANSWER] += 1
        else:
            yield rollout


def _score(rollout: Rollout) -> float:
    return math.nan if rollout.score is None else rollout.score


def _prompt_length(rollout: Rollout) -> int:
    """The number of prompt messages; in a record without it, those before the first assistant message."""
    recorded = rollout.metadata.get("prompt_length")
    if isinstance(recorded, int):
        return recorded
    roles = [message.get("role") for message in rollout.messages]
    return roles.index("assistant") if "assistant" in roles else len(roles)


def _template_message(message: Message, names: Mapping[str, str]) -> Message:
    # Templates concatenate contents as text, and write a missing one as "None".
    content = message.get("content")
    has_images = isinstance(content, list) and any("text" not in part for part in content)
    row: Message = {"role": message.get("role", "user"), "content": content if has_images else content_text(content)}
    if reasoning := message.get("reasoning_content"):
        row["reasoning_content"] = reasoning
    if calls := _tool_calls(message):
        row["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
            for call in calls
        ]
    if (call_id := message.get("tool_call_id")) is not None:
        row["tool_call_id"] = call_id
        row["name"] = names.get(call_id, "")
    return row


def _arguments(call: ToolCall) -> Any:
    """An object, since templates serialise it themselves; the model's text when it is not valid JSON."""
    try:
        value = fast_json.loads(call.arguments)
    except ValueError:
        return call.arguments
    return value if isinstance(value, dict) else call.arguments


def _tool_calls(message: Message) -> list[ToolCall]:
    return [ToolCall.from_raw(raw) for raw in message.get("tool_calls") or ()]


def _without_ids(messages: Sequence[Message]) -> list[Message]:
    """The messages without tool call ids: conversations that differ only in those are equal."""
    return [
        {key: [call["function"] for call in value] if key == "tool_calls" else value for key, value in message.items()}
        | {"tool_call_id": None}
        for message in messages
    ]
