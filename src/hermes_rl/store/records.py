"""The record format of docs/formats.md: one JSON line a group, rollouts whole, Atropos' columns derived from them.

A line is whole or, after a crash, the torn last one, which readers leave out and the next writer cuts off.
`group_of(record_of(group))` is the same group.
"""

import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hermes_rl import jsontext
from hermes_rl.errors import ConfigError, Failure, Whose
from hermes_rl.trajectory import (
    Group,
    Provenance,
    Rollout,
    Sampling,
    Sequence,
    Span,
    StopReason,
    Timing,
    ToolUse,
    Usage,
)

FORMAT = "hermes-rl/group/2"
TAIL = 65_536


def record_of(group: Group) -> dict[str, Any]:
    """The group as its JSON record."""
    return {
        "format": FORMAT,
        "id": group.id,
        "draw": group.draw,
        "item_id": group.item_id,
        "item": group.item,
        "split": group.split,
        "created_at": group.created_at,
        "tools": list(group.tools),
        "tool_schemas": list(group.tool_schemas),
        "withheld": group.withheld,
        "provenance": asdict(group.provenance),
        "rollouts": [rollout_record(rollout) for rollout in group.rollouts],
        **atropos_columns(group),
    }


def rollout_record(rollout: Rollout) -> dict[str, Any]:
    """One rollout as JSON; every field of Rollout by its own name."""
    return {
        "item_id": rollout.item_id,
        "index": rollout.index,
        "seed": rollout.seed,
        "score": rollout.score,
        "stop_reason": rollout.stop_reason,
        "failure": asdict(rollout.failure) if rollout.failure else None,
        "components": dict(rollout.components),
        "turn_scores": list(rollout.turn_scores),
        "turns_used": rollout.turns_used,
        "messages": rollout.messages,
        "tool_uses": [use._asdict() for use in rollout.tool_uses],
        "usage": asdict(rollout.usage),
        "timings": [timing._asdict() for timing in rollout.timings],
        "seconds": rollout.seconds,
        "sequences": [_sequence_record(sequence) for sequence in rollout.sequences],
        "withheld": rollout.withheld,
        "metadata": dict(rollout.metadata),
    }


def atropos_columns(group: Group) -> dict[str, Any]:
    """Atropos' ScoredDataGroup keys, over the scored rollouts only.

    The token columns are null unless every scored rollout has exactly one sequence: Atropos knows no other shape,
    and tokens are never made up to fill one.
    """
    scored = group.scored
    sequences = [rollout.sequences[0] for rollout in scored if len(rollout.sequences) == 1]
    exact = bool(scored) and len(sequences) == len(scored)
    return {
        "scores": group.scores,
        "messages": [rollout.messages for rollout in scored],
        "tokens": [list(sequence.tokens) for sequence in sequences] if exact else None,
        "masks": [sequence.atropos_mask() for sequence in sequences] if exact else None,
        "inference_logprobs": [sequence.atropos_logprobs() for sequence in sequences] if exact else None,
        "advantages": None,
        "ref_logprobs": None,
        "generation_params": asdict(sequences[0].sampling) if exact else None,
        "group_overrides": dict(group.overrides),
        "overrides": None,
        "images": None,
    }


def group_of(record: Mapping[str, Any]) -> Group:
    """The group a record holds; ConfigError for another format or version."""
    if record.get("format") != FORMAT:
        raise ConfigError(f"this record says format {record.get('format')!r}; this version reads {FORMAT!r}")
    return Group(
        item_id=record["item_id"],
        item=record["item"],
        split=record["split"],
        created_at=record["created_at"],
        id=record["id"],
        draw=record["draw"],
        withheld=record["withheld"],
        tools=tuple(record["tools"]),
        tool_schemas=tuple(record["tool_schemas"]),
        provenance=Provenance(**record["provenance"]),
        rollouts=tuple(rollout_of(rollout) for rollout in record["rollouts"]),
        overrides=record["group_overrides"],
    )


def rollout_of(record: Mapping[str, Any]) -> Rollout:
    failure, stop_reason = record["failure"], record["stop_reason"]
    return Rollout(
        item_id=record["item_id"],
        index=record["index"],
        seed=record["seed"],
        score=record["score"],
        stop_reason=StopReason(stop_reason) if stop_reason else None,
        failure=Failure(Whose(failure["whose"]), failure["cause"], failure["message"]) if failure else None,
        components=record["components"],
        turn_scores=tuple(record["turn_scores"]),
        turns_used=record["turns_used"],
        messages=record["messages"],
        tool_uses=tuple(ToolUse(**use) for use in record["tool_uses"]),
        usage=Usage(**record["usage"]),
        timings=tuple(
            Timing(Span(timing["span"]), timing["name"], timing["start"], timing["seconds"])
            for timing in record["timings"]
        ),
        seconds=record["seconds"],
        sequences=tuple(_sequence_of(sequence) for sequence in record["sequences"]),
        withheld=record["withheld"],
        metadata=record["metadata"],
    )


class RecordWriter:
    """Appends records to a JSONL file, each whole and flushed to the operating system."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._cut_torn_line()

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one line; when the disk refuses a part of it, none of it stays."""
        line = memoryview(jsontext.dumps(record) + b"\n")
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError:
            self._cut_torn_line()
            raise

    def sync(self) -> None:
        """Return when what was written is on the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)

    def _cut_torn_line(self) -> None:
        # Only a line feed ends a record: what a crash left without one would swallow the next.
        size = os.fstat(self._file).st_size
        end = size
        while end > 0:
            begin = max(0, end - TAIL)
            newline = os.pread(self._file, end - begin, begin).rfind(b"\n")
            if newline >= 0:
                end = begin + newline + 1
                break
            end = begin
        if end < size:
            os.ftruncate(self._file, end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON file of one object so that a reader sees the old one or the new one, however many write it."""
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}.part")
    try:
        part.write_bytes(jsontext.dumps(document) + b"\n")
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def read_groups(path: Path) -> Iterator[Group]:
    """The groups of a JSONL file, one at a time; a torn last line ends the reading.

    ConfigError that names file and line for one that is no group of this format.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                group = group_of(jsontext.loads(line))
            except (ConfigError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError(f"{path}, line {number} holds no group: {error}") from error
            yield group


def _sequence_record(sequence: Sequence) -> dict[str, Any]:
    # Not asdict, which copies number by number: half a second for 16 rollouts of 8k tokens.
    return {
        "tokens": sequence.tokens,
        "mask": sequence.mask,
        "logprobs": sequence.logprobs,
        "versions": sequence.versions,
        "sampling": asdict(sequence.sampling),
    }


def _sequence_of(record: Mapping[str, Any]) -> Sequence:
    return Sequence(
        tokens=tuple(record["tokens"]),
        mask=tuple(record["mask"]),
        logprobs=tuple(record["logprobs"]),
        versions=tuple(record["versions"]),
        sampling=Sampling(**record["sampling"]),
    )
