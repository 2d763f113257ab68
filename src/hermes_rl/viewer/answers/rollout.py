"""One rollout and one group in full: all but the conversation and the tokens, which come by pages.

Always true: what may be of any size (an item, metadata, settings) is cut, and says so.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hermes_rl.viewer.described import messages_of
from hermes_rl.viewer.lenient import mapping, number, sequence, shown, text, whole

TIMINGS = 2_000
NAMES = 200
CUT = 20_000
MESSAGE = 4_000
MOST_TOKENS = 8_192


def rollout_detail(said: Mapping[str, Any]) -> dict[str, Any]:
    usage = mapping(said.get("usage"))
    return {
        "seed": said.get("seed") if isinstance(said.get("seed"), int) else None,
        "components": numbers(said.get("components")),
        "turn_scores": [number(one) for one in sequence(said.get("turn_scores"))[:TIMINGS]],
        "usage": {name: whole(usage.get(name)) for name in ("prompt_tokens", "completion_tokens")},
        "timings": [
            {
                "span": str(mapping(one).get("span"))[:NAMES],
                "name": str(mapping(one).get("name"))[:NAMES],
                "start": number(mapping(one).get("start")),
                "seconds": number(mapping(one).get("seconds")),
            }
            for one in sequence(said.get("timings"))[:TIMINGS]
        ],
        "failure_message": (text(mapping(said.get("failure")).get("message")) or "")[:MESSAGE] or None,
        "messages": len(messages_of(said)),
        "sequences": [_sequence(mapping(one)) for one in sequence(said.get("sequences"))[:NAMES]],
        "metadata": cut(said.get("metadata")),
    }


def tokens_page(said: Mapping[str, Any], place: int, first: int, limit: int) -> dict[str, Any] | None:
    """A stretch of one sequence; None when there is none of that number."""
    sequences = sequence(said.get("sequences"))
    if not 0 <= place < len(sequences):
        return None
    one = mapping(sequences[place])
    ids = sequence(one.get("tokens"))
    end = first + limit
    return {
        "ids": [whole(token) for token in ids[first:end]],
        "pieces": None,
        **{name: [number(value) for value in sequence(one.get(name))[first:end]] for name in _COLUMNS},
        "sampling": cut(one.get("sampling")),
        "total": len(ids),
        "next": end if end < len(ids) else None,
    }


def cut(value: Any) -> Any:
    """The value as it is while it is small; of a larger one the beginning of its JSON."""
    if value is None:
        return None
    written = shown(value)
    return value if len(written) <= CUT else {"cut": True, "chars": len(written), "text": written[:CUT]}


def numbers(value: Any) -> dict[str, float | None]:
    return {str(name)[:NAMES]: number(one) for name, one in list(mapping(value).items())[:NAMES]}


_COLUMNS = ("mask", "logprobs", "versions")


def _sequence(one: Mapping[str, Any]) -> dict[str, Any]:
    versions = [value for value in sequence(one.get("versions")) if isinstance(value, int)]
    return {
        "tokens": len(sequence(one.get("tokens"))),
        "sampled": sum(1 for value in sequence(one.get("mask")) if value == 1),
        "versions": [min(versions), max(versions)] if versions else [None, None],
        "sampling": cut(one.get("sampling")),
    }


def contrast(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the better rollouts of a group did otherwise than the worse ones; nothing where all score alike.

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
    found = [_compared("turns", "turns", "turns", good, bad), _compared("length", "tokens", "length", good, bad)]
    for what, column in (("tool", "tools"), ("component", "components")):
        names = sorted({name for row in scored for name in row[column]})[:NAMES]
        found += [_compared(what, name, column, good, bad) for name in names]
    reasons = sorted({row["stop_reason"] for row in scored if row["stop_reason"]})
    for reason in reasons:
        shares = [sum(row["stop_reason"] == reason for row in side) / len(side) for side in (good, bad)]
        found.append({"what": "stop_reason", "name": reason, "good": shares[0], "bad": shares[1]})
    told = [one for one in found if one["good"] is not None and one["bad"] is not None and one["good"] != one["bad"]]
    return sorted(told, key=_difference, reverse=True)[:12]


def _compared(
    what: str, name: str, column: str, good: Sequence[Mapping[str, Any]], bad: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    means = []
    for side in (good, bad):
        values = [row[column] if isinstance(row[column], int | float) else _of(row[column], name, what) for row in side]
        known = [value for value in values if value is not None]
        means.append(sum(known) / len(known) if known else None)
    return {"what": what, "name": name, "good": means[0], "bad": means[1]}


def _of(values: Mapping[str, Any] | None, name: str, what: str) -> float | None:
    if values is None:
        return None
    return number(values.get(name, 0 if what == "tool" else None))


def _difference(one: Mapping[str, Any]) -> float:
    good, bad = float(one["good"]), float(one["bad"])
    return abs(good - bad) / (abs(good) + abs(bad) or 1.0)
