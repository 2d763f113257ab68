"""Groups of a trajectory database, described from their binary form.

Always true: tokens are only unpacked for who asks for tokens; a group whose bytes were let go is told as such.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from hermes_rl.store.codec import GroupView, open_group
from hermes_rl.store.parts import BadGroupError, flags_of
from hermes_rl.viewer.described import MOST_ROLLOUTS, GroupEntry, RolloutEntry, describe_group, describe_rollout
from hermes_rl.viewer.sources.lines import Broken

GONE = "its bytes were let go (--keep-days, --keep-gigabytes)"


def entry_of(place: int, data: bytes | None) -> GroupEntry | Broken:
    at = (place, 0, len(data or b""))
    if data is None:
        return Broken(*at, GONE)
    try:
        view = open_group(data)
        return describe_group({**view.group, **view.item}, tuple(_entries(view)), rollout_of(view, 0), at)
    except (BadGroupError, KeyError, IndexError, TypeError) as error:
        return Broken(*at, f"no group: {error}")


def rollout_of(view: GroupView, position: int) -> dict[str, Any]:
    """A rollout as its record has it, without its sequences."""
    scores = iter(view.columns.scores)
    marks = flags_of(view.columns.scored, len(view.columns.sequences))
    score = [next(scores) if marked else None for marked in marks[: position + 1]][position]
    about = {name: value for name, value in view.rollouts[position].items() if name != "sampling"}
    return {**about, **view.conversations[position], "score": score}


def sequences_of(view: GroupView, position: int) -> list[dict[str, Any]]:
    """The sequences of one rollout, as its record has them."""
    columns = view.columns
    before, count = sum(columns.sequences[:position]), columns.sequences[position]
    ends = [0, *accumulate(columns.lengths)]
    marks = flags_of(columns.masks, len(columns.tokens))
    has_logprob = flags_of(columns.logprobs_at, len(columns.tokens))
    sampling = view.rollouts[position]["sampling"]
    found = []
    for number in range(before, before + count):
        begin, end = ends[number], ends[number + 1]
        first = has_logprob.count(1, 0, begin)
        values = iter(columns.logprobs[first : first + has_logprob.count(1, begin, end)])
        found.append(
            {
                "tokens": columns.tokens[begin:end].tolist(),
                "mask": list(marks[begin:end]),
                "logprobs": [next(values) if marked else None for marked in has_logprob[begin:end]],
                "versions": _versions(view, begin, end),
                "sampling": sampling[number - before] if number - before < len(sampling) else None,
            }
        )
    return found


def _entries(view: GroupView) -> Iterator[RolloutEntry]:
    ends = [0, *accumulate(view.columns.lengths)]
    sequence = 0
    for position, count in enumerate(view.columns.sequences[:MOST_ROLLOUTS]):
        known = set(view.columns.versions)
        if len(known) > 1:
            known = {one for one in _versions(view, ends[sequence], ends[sequence + count]) if one is not None}
        sequence += count
        versions = (min(known, default=None), max(known, default=None)) if count else (None, None)
        yield describe_rollout(rollout_of(view, position), position, versions)


def _versions(view: GroupView, begin: int, end: int) -> list[int | None]:
    columns = view.columns
    marks = flags_of(columns.versions_at, len(columns.tokens))
    first = marks.count(1, 0, begin)
    last = first + marks.count(1, begin, end)
    found: list[int] = []
    at = 0
    for version, run in zip(columns.versions, columns.version_runs, strict=True):
        found += [version] * max(0, min(at + run, last) - max(at, first))
        at += run
        if at >= last:
            break
    values = iter(found)
    return [next(values) if marked else None for marked in marks[begin:end]]
