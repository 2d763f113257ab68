"""The JSONL record format of docs/formats.md: one line per group, with full rollouts and derived Atropos columns.

Always true: every line is complete, but a crash can tear the last one; readers skip it, and the next writer cuts it.
`group_from_record(group_to_record(group))` is the same group.
"""

import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError, Failure, FailureSource
from hermes_rl.core.private_files import open_private, private_folder, write_private
from hermes_rl.core.trajectory import (
    AuditedReward,
    Branch,
    Group,
    Provenance,
    Rollout,
    SampledCall,
    Sampling,
    Sequence,
    Span,
    StopReason,
    Timing,
    ToolUse,
    TurnState,
    Usage,
)

FORMAT = "hermes-rl/group/3"
# Version 2 has no states, notes, seat and branch.
READABLE = ("hermes-rl/group/2", FORMAT)
TAIL_BYTES = 65_536


def group_to_record(group: Group) -> dict[str, Any]:
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
        "rollouts": [rollout_to_record(rollout) for rollout in group.rollouts],
        **atropos_columns(group),
    }


def rollout_to_record(rollout: Rollout) -> dict[str, Any]:
    """One rollout as JSON, with every field of Rollout under its name."""
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
        "sequences": [_sequence_to_record(sequence) for sequence in rollout.sequences],
        "withheld": rollout.withheld,
        "states": [state._asdict() for state in rollout.states],
        "notes": dict(rollout.notes),
        "seat": rollout.seat,
        "audit": asdict(rollout.audit) if rollout.audit else None,
        "branch": rollout.branch._asdict() if rollout.branch else None,
        "metadata": dict(rollout.metadata),
    }


def atropos_columns(group: Group) -> dict[str, Any]:
    """Atropos' ScoredDataGroup keys, over the scored rollouts only.

    The token columns are null unless every scored rollout has exactly one sequence: Atropos supports no other shape,
    and tokens are never invented to fill one.
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


def atropos_item(rollout: Rollout) -> dict[str, Any] | None:
    """Atropos' ScoredDataItem of a rollout, without tokens unless it has exactly one sequence; None without a score."""
    if not rollout.scored:
        return None
    sequence = rollout.sequences[0] if len(rollout.sequences) == 1 else None
    return {
        "tokens": list(sequence.tokens) if sequence else None,
        "masks": sequence.atropos_mask() if sequence else None,
        "inference_logprobs": sequence.atropos_logprobs() if sequence else None,
        "scores": rollout.score,
        "messages": rollout.messages,
    }


def group_from_record(record: Mapping[str, Any]) -> Group:
    """The group of a record; ConfigError for another format or version."""
    if record.get("format") not in READABLE:
        raise ConfigError(f"the record has format {record.get('format')!r}; this version reads {FORMAT!r}")
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
        rollouts=tuple(rollout_from_record(rollout) for rollout in record["rollouts"]),
        overrides=record["group_overrides"],
    )


def rollout_from_record(record: Mapping[str, Any]) -> Rollout:
    failure, stop_reason, audit = record["failure"], record["stop_reason"], record.get("audit")
    return Rollout(
        item_id=record["item_id"],
        index=record["index"],
        seed=record["seed"],
        score=record["score"],
        stop_reason=StopReason(stop_reason) if stop_reason else None,
        failure=Failure(FailureSource(failure["whose"]), failure["cause"], failure["message"]) if failure else None,
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
        sequences=tuple(_sequence_from_record(sequence) for sequence in record["sequences"]),
        withheld=record["withheld"],
        states=tuple(TurnState(state["turn"], state["value"]) for state in record.get("states") or ()),
        notes={str(name): str(note) for name, note in (record.get("notes") or {}).items()},
        seat=record.get("seat"),
        audit=AuditedReward(**audit) if audit else None,
        branch=Branch(**branch) if (branch := record.get("branch")) else None,
        metadata=record["metadata"],
    )


class RecordWriter:
    """Appends records to a JSONL file, each complete and flushed to the operating system.

    Only the owner can read a new file, unless it is `exported`.
    """

    def __init__(self, path: Path, *, exported: bool = False) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        if exported:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, flags, 0o666)
        else:
            private_folder(path.parent)
            self._file = open_private(path, flags)
        self._cut_torn_line()

    def write(self, *records: Mapping[str, Any]) -> None:
        """Append a line for each record; a failed write leaves none of them behind."""
        lines = memoryview(b"".join(fast_json.dumps(record) + b"\n" for record in records))
        begin = os.fstat(self._file).st_size
        try:
            while lines:
                lines = lines[os.write(self._file, lines) :]
        except OSError:
            if os.fstat(self._file).st_size > begin:
                os.ftruncate(self._file, begin)
            raise

    def sync(self) -> None:
        """Return when everything written is on disk."""
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)

    def _cut_torn_line(self) -> None:
        # Only a newline ends a record: without one, a torn line would swallow the next record.
        size = os.fstat(self._file).st_size
        end = size
        while end > 0:
            begin = max(0, end - TAIL_BYTES)
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
    """Write a JSON file atomically: readers see the old or the new version, also with several writers."""
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}.part")
    try:
        write_private(part, fast_json.dumps(document) + b"\n")
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def read_groups(path: Path) -> Iterator[Group]:
    """The groups of a JSONL file, one at a time; a torn last line is skipped.

    ConfigError names the file and line that is not a group of this format.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                group = group_from_record(fast_json.loads(line))
            except (ConfigError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError(f"{path}, line {number} is not a group: {error}") from error
            yield group


def _sequence_to_record(sequence: Sequence) -> dict[str, Any]:
    # Not asdict, which copies every number: half a second for 16 rollouts of 8k tokens.
    return {
        "tokens": sequence.tokens,
        "mask": sequence.mask,
        "logprobs": sequence.logprobs,
        "versions": sequence.versions,
        "sampling": asdict(sequence.sampling),
        **({"calls": [list(call) for call in sequence.calls]} if sequence.calls else {}),
    }


def _sequence_from_record(record: Mapping[str, Any]) -> Sequence:
    return Sequence(
        tokens=tuple(record["tokens"]),
        mask=tuple(record["mask"]),
        logprobs=tuple(record["logprobs"]),
        versions=tuple(record["versions"]),
        sampling=Sampling(**record["sampling"]),
        calls=tuple(SampledCall(call, begin) for call, begin in record.get("calls") or ()),
    )
