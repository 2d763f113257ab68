"""Details of one rollout or group, except the conversation and the tokens, which are paged.

Always true: values of any size (items, metadata, settings) are truncated and marked as such.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hermes_rl.viewer.lenient_json import as_int, as_list, as_mapping, as_number, as_str, to_text
from hermes_rl.viewer.summaries import rollout_messages

MAX_TIMINGS = 2_000
MAX_NAMES = 200
MAX_TEXT = 20_000
MAX_MESSAGE = 4_000
MAX_TOKENS = 8_192


def rollout_detail(record: Mapping[str, Any]) -> dict[str, Any]:
    usage, metadata = as_mapping(record.get("usage")), as_mapping(record.get("metadata"))
    return {
        "seed": record.get("seed") if isinstance(record.get("seed"), int) else None,
        "components": as_numbers(record.get("components")),
        "turn_scores": [as_number(one) for one in as_list(record.get("turn_scores"))[:MAX_TIMINGS]],
        "usage": {name: as_int(usage.get(name)) for name in ("prompt_tokens", "completion_tokens")},
        "timings": [
            {
                "span": str(as_mapping(one).get("span"))[:MAX_NAMES],
                "name": str(as_mapping(one).get("name"))[:MAX_NAMES],
                "start": as_number(as_mapping(one).get("start")),
                "seconds": as_number(as_mapping(one).get("seconds")),
            }
            for one in as_list(record.get("timings"))[:MAX_TIMINGS]
        ],
        "failure_message": (as_str(as_mapping(record.get("failure")).get("message")) or "")[:MAX_MESSAGE] or None,
        "messages": len(rollout_messages(record)),
        "sequences": [_sequence(as_mapping(one)) for one in as_list(record.get("sequences"))[:MAX_NAMES]],
        "notes": _notes(record),
        "end_reason": as_str(metadata.get("end_reason")),
        "step_reward": math.fsum(values) if (values := [step["value"] for step in step_rewards(record)]) else None,
        "metadata": truncate(record.get("metadata")),
    }


def step_rewards(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rewards that tools gave during the rollout: turn, value and note of each."""
    found = as_list(as_mapping(record.get("metadata")).get("step_rewards"))
    rows = [as_mapping(one) for one in found[:MAX_TIMINGS]]
    return [
        {"turn": as_int(row.get("turn")), "value": value, "note": (as_str(row.get("note")) or "")[:MAX_MESSAGE]}
        for row in rows
        if (value := as_number(row.get("value"))) is not None
    ]


def _notes(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the reward has to say, such as the reasons of a judge, and what the audit says."""
    notes = list(as_mapping(record.get("notes")).items())[:MAX_NAMES] + _audit_notes(record)
    return [
        {"name": str(name)[:MAX_NAMES], "text": text[:MAX_TEXT], "chars": len(text)}
        for name, value in notes
        if (text := to_text(value))
    ]


def _audit_notes(record: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The audited score or the error of the audit, then its notes."""
    audit = as_mapping(record.get("audit"))
    score, notes = as_number(audit.get("score")), list(as_mapping(audit.get("notes")).items())[:MAX_NAMES]
    said = as_str(audit.get("error")) if score is None else f"score {score:g}"
    return [("audit", said or ""), *((f"audit: {name}", text) for name, text in notes)]


def tokens_page(record: Mapping[str, Any], index: int, first: int, limit: int) -> dict[str, Any] | None:
    """Some tokens of one sequence; None when there is no such sequence."""
    sequences = as_list(record.get("sequences"))
    if not 0 <= index < len(sequences):
        return None
    sequence = as_mapping(sequences[index])
    ids = as_list(sequence.get("tokens"))
    end = first + limit
    return {
        "ids": [as_int(token) for token in ids[first:end]],
        "pieces": None,
        **{name: [as_number(value) for value in as_list(sequence.get(name))[first:end]] for name in _COLUMNS},
        "sampling": truncate(sequence.get("sampling")),
        "total": len(ids),
        "next": end if end < len(ids) else None,
    }


def truncate(value: Any) -> Any:
    """A small value unchanged; of a larger one the beginning of its JSON."""
    if value is None:
        return None
    text = to_text(value)
    return value if len(text) <= MAX_TEXT else {"cut": True, "chars": len(text), "text": text[:MAX_TEXT]}


def as_numbers(value: Any) -> dict[str, float | None]:
    return {str(name)[:MAX_NAMES]: as_number(one) for name, one in list(as_mapping(value).items())[:MAX_NAMES]}


_COLUMNS = ("mask", "logprobs", "versions")


def _sequence(sequence: Mapping[str, Any]) -> dict[str, Any]:
    versions = [value for value in as_list(sequence.get("versions")) if isinstance(value, int)]
    return {
        "tokens": len(as_list(sequence.get("tokens"))),
        "sampled": sum(1 for value in as_list(sequence.get("mask")) if value == 1),
        "versions": [min(versions), max(versions)] if versions else [None, None],
        "sampling": truncate(sequence.get("sampling")),
    }


def contrast(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How the better rollouts of a group differ from the worse ones; empty when all scores are equal.

    Each of `rows` has score, stop_reason, turns, length, tools (calls by name) and components.
    """
    scored = [row for row in rows if row["score"] is not None]
    if not scored:
        return []
    mean = sum(row["score"] for row in scored) / len(scored)
    good = [row for row in scored if row["score"] > mean]
    bad = [row for row in scored if row["score"] < mean]
    if not good or not bad:
        return []
    found = [_compare("turns", "turns", "turns", good, bad), _compare("length", "tokens", "length", good, bad)]
    for what, column in (("tool", "tools"), ("component", "components")):
        names = sorted({name for row in scored for name in row[column]})[:MAX_NAMES]
        found += [_compare(what, name, column, good, bad) for name in names]
    reasons = sorted({row["stop_reason"] for row in scored if row["stop_reason"]})
    for reason in reasons:
        shares = [sum(row["stop_reason"] == reason for row in side) / len(side) for side in (good, bad)]
        found.append({"what": "stop_reason", "name": reason, "good": shares[0], "bad": shares[1]})
    known = [row for row in found if row["good"] is not None and row["bad"] is not None and row["good"] != row["bad"]]
    return sorted(known, key=_difference, reverse=True)[:12]


def _compare(
    what: str, name: str, column: str, good: Sequence[Mapping[str, Any]], bad: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    means = []
    for side in (good, bad):
        values = [
            row[column] if isinstance(row[column], int | float) else _named_value(row[column], name, what)
            for row in side
        ]
        known = [value for value in values if value is not None]
        means.append(sum(known) / len(known) if known else None)
    return {"what": what, "name": name, "good": means[0], "bad": means[1]}


def _named_value(values: Mapping[str, Any] | None, name: str, what: str) -> float | None:
    if values is None:
        return None
    return as_number(values.get(name, 0 if what == "tool" else None))


def _difference(row: Mapping[str, Any]) -> float:
    good, bad = float(row["good"]), float(row["bad"])
    return abs(good - bad) / (abs(good) + abs(bad) or 1.0)
