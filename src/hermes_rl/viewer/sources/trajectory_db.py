"""Groups of a trajectory database, read from their binary format.

Always true: tokens are decoded only on request; a group with deleted bytes is reported as such.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from hermes_rl.store.codec import GroupView, model_calls, open_group
from hermes_rl.store.container import BadGroupError, unpack_bits
from hermes_rl.viewer.sources.jsonl import BrokenLine
from hermes_rl.viewer.summaries import MAX_ROLLOUTS, GroupEntry, RolloutEntry, describe_group, describe_rollout

BYTES_DELETED = "its data was deleted (--keep-days, --keep-gigabytes)"


def index_entry(place: int, data: bytes | None) -> GroupEntry | BrokenLine:
    at = (place, 0, len(data or b""))
    if data is None:
        return BrokenLine(*at, BYTES_DELETED)
    try:
        view = open_group(data)
        return describe_group({**view.group, **view.item}, tuple(_entries(view)), rollout_record(view, 0), at)
    except (BadGroupError, KeyError, IndexError, TypeError) as error:
        return BrokenLine(*at, f"not a group: {error}")


def rollout_record(view: GroupView, position: int) -> dict[str, Any]:
    """The record of a rollout, without its sequences."""
    scores = iter(view.columns.scores)
    scored = unpack_bits(view.columns.scored, len(view.columns.sequences))
    score = [next(scores) if has_score else None for has_score in scored[: position + 1]][position]
    fields = {name: value for name, value in view.rollouts[position].items() if name not in {"sampling", "calls"}}
    return {**fields, **view.conversations[position], "score": score}


def sequence_records(view: GroupView, position: int) -> list[dict[str, Any]]:
    """The sequences of one rollout, as in its record."""
    columns = view.columns
    before, count = sum(columns.sequences[:position]), columns.sequences[position]
    ends = [0, *accumulate(columns.lengths)]
    mask = unpack_bits(columns.masks, len(columns.tokens))
    has_logprob = unpack_bits(columns.logprobs_at, len(columns.tokens))
    sampling, calls = view.rollouts[position]["sampling"], model_calls(view.rollouts[position])
    found = []
    for index, number in enumerate(range(before, before + count)):
        begin, end = ends[number], ends[number + 1]
        first = has_logprob.count(1, 0, begin)
        values = iter(columns.logprobs[first : first + has_logprob.count(1, begin, end)])
        found.append(
            {
                "tokens": columns.tokens[begin:end].tolist(),
                "mask": list(mask[begin:end]),
                "logprobs": [next(values) if marked else None for marked in has_logprob[begin:end]],
                "versions": _versions(view, begin, end),
                "sampling": sampling[index] if index < len(sampling) else None,
                **({"calls": calls[index]} if index < len(calls) and calls[index] else {}),
            }
        )
    return found


def _entries(view: GroupView) -> Iterator[RolloutEntry]:
    ends = [0, *accumulate(view.columns.lengths)]
    sequence = 0
    for position, count in enumerate(view.columns.sequences[:MAX_ROLLOUTS]):
        known = set(view.columns.versions)
        if len(known) > 1:
            known = {value for value in _versions(view, ends[sequence], ends[sequence + count]) if value is not None}
        sequence += count
        versions = (min(known, default=None), max(known, default=None)) if count else (None, None)
        yield describe_rollout(rollout_record(view, position), position, versions)


def _versions(view: GroupView, begin: int, end: int) -> list[int | None]:
    columns = view.columns
    has_version = unpack_bits(columns.versions_at, len(columns.tokens))
    first = has_version.count(1, 0, begin)
    last = first + has_version.count(1, begin, end)
    found: list[int] = []
    at = 0
    for version, run in zip(columns.versions, columns.version_runs, strict=True):
        found += [version] * max(0, min(at + run, last) - max(at, first))
        at += run
        if at >= last:
            break
    values = iter(found)
    return [next(values) if present else None for present in has_version[begin:end]]
