"""Atropos ScoredData converted to a native group; errors name the field.

`batch_json` reproduces everything posted, including unknown fields; only logprobs are rounded, to float32. Fields
without a native column are stored as JSON text in the item. Empty lists, as sent by atroposlib's collect_trajectories,
count as missing.

Atropos does not report stop reasons (`natural` is stored), policy versions (none is stored) or temperature (1 unless
`generation_params` has one). A post has no id, so it is identified by its content: the same content from the same
environment counts once.
"""

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hermes_rl.api.atropos.fields import INT64, Fields, format_value, yield_gil
from hermes_rl.api.atropos.members import Value, split_object, split_objects
from hermes_rl.core.messages import Message
from hermes_rl.core.trajectory import Group, Provenance, Rollout, Sampling, Sequence, StopReason
from hermes_rl.http.errors import RefusedError
from hermes_rl.store.codec import encode

# Marks a group as posted through this protocol.
ORIGIN = Provenance("atropos", "", "", {"atropos-protocol": "0.4.0"})
IGNORED = -100
UNSAMPLED = 1.0
SAMPLED = re.compile(rb"\x01+")
LARGEST_FLOAT32 = 3.4028234663852886e38
# One list per sequence, as long as the sequence.
PARALLEL = ("advantages", "ref_logprobs")
# One element per sequence.
PER_SEQUENCE = ("overrides", "distill_token_ids", "distill_logprobs")
# Fields stored in native columns; their text goes into the item only if the columns cannot represent it.
COLUMN_FIELDS = frozenset({"tokens", "masks", "scores", "messages", "inference_logprobs", "group_overrides"})


def read_scored_data(text: bytes) -> tuple[int | None, bytes]:
    """The environment's number and the group in its binary form; RefusedError names the field."""
    return _encoded(_cut(lambda: split_object(text)), "")


def read_scored_data_list(text: bytes) -> list[tuple[int | None, bytes]]:
    """The same for each group of a list; refused as a whole if one is invalid."""
    parts = _cut(lambda: list(split_objects(text)))
    return [_encoded(members, f"[{number}].") for number, members in enumerate(parts)]


def _cut(split: Callable[[], Any]) -> Any:
    try:
        return split()
    except ValueError as error:
        raise RefusedError(
            422, "invalid", f"the body is not JSON of the expected shape: {error}", field="body"
        ) from None


def _encoded(members: Mapping[str, Value], prefix: str) -> tuple[int | None, bytes]:
    fields = Fields(members, prefix)
    environment = _environment(fields)
    group = _group(fields)
    yield_gil()
    return environment, encode(group)


def _environment(fields: Fields) -> int | None:
    number = fields.read("env_id") if "env_id" in fields.given else None
    if number is not None and (type(number) is not int or not -INT64 <= number < INT64):
        raise fields.refused("env_id", f"must be an integer or null, not {format_value(number)}")
    return number


def _group(fields: Fields) -> Group:
    tokens = fields.lists("tokens", fields.whole_numbers)
    lengths = [len(row) for row in tokens]
    if 0 in lengths:
        raise fields.refused(f"tokens[{lengths.index(0)}]", "must have at least one token")
    masks = fields.lists("masks", fields.whole_numbers, lengths)
    scores = _scores(fields, len(tokens))
    stored: dict[str, str | None] = {}
    logprobs = _logprobs(fields, lengths, stored)
    messages = _messages(fields, len(tokens), stored)
    overrides = fields.mapping("group_overrides")
    sampling = _sampling(fields.mapping("generation_params"))
    for name in PARALLEL:
        if fields.has_values(name):
            fields.lists(name, fields.numbers, lengths)
    for name in PER_SEQUENCE:
        if fields.has_values(name):
            fields.elements(name, len(tokens))
    item_id = hashlib.sha256(fields.given["tokens"].text).hexdigest()[:16]
    rollouts = []
    masks_match = True
    for index, (row, mask) in enumerate(zip(tokens, masks, strict=True)):
        flags = bytes(map(IGNORED.__ne__, mask))
        runs = [run.span() for run in SAMPLED.finditer(flags)]
        masks_match = masks_match and all(mask[begin:end] == row[begin:end] for begin, end in runs)
        row_logprobs = _none_for_unsampled(logprobs[index], runs) if logprobs else (None,) * len(row)
        sequence = Sequence(tuple(row), tuple(flags), row_logprobs, (None,) * len(row), sampling)
        rollouts.append(_rollout(item_id, index, scores[index], messages[index], sequence))
    for name in fields.given.keys() - (COLUMN_FIELDS if masks_match else COLUMN_FIELDS - {"masks"}):
        stored[name] = fields.text(name)
    if "group_overrides" in fields.given:
        stored["group_overrides"] = None
    return Group(
        item_id=item_id,
        item={"atropos": dict(sorted(stored.items()))},
        rollouts=tuple(rollouts),
        provenance=ORIGIN,
        overrides=overrides,
    )


def _scores(fields: Fields, count: int) -> list[float]:
    scores = fields.array("scores", fields.value("scores").text)
    if len(scores) != count:
        raise fields.refused("scores", f"{len(scores)} elements, but tokens has {count} sequences")
    for index, score in enumerate(scores):
        # Atropos accepts booleans as scores.
        if not isinstance(score, int | float):
            raise fields.refused(f"scores[{index}]", f"must be a finite number, not {format_value(score)}")
    return [float(score) for score in scores]


def _logprobs(fields: Fields, lengths: list[int], stored: dict[str, str | None]) -> list[list[float]]:
    name = "inference_logprobs"
    if not fields.has_values(name):
        if name in fields.given:
            stored[name] = "[]"
        return []
    stored[name] = None
    rows = fields.lists(name, fields.numbers, lengths)
    for index, row in enumerate(rows):
        if max(row) > LARGEST_FLOAT32 or min(row) < -LARGEST_FLOAT32:
            raise fields.refused(f"{name}[{index}]", "a logprob is out of float32 range")
    return rows


def _messages(fields: Fields, count: int, stored: dict[str, str | None]) -> list[list[Message]]:
    if not fields.has_values("messages"):
        if "messages" in fields.given:
            stored["messages"] = "[]"
        return [[] for _ in range(count)]
    stored["messages"] = None
    rows = []
    for index, text in enumerate(fields.elements("messages", count)):
        row = fields.parsed(f"messages[{index}]", text)
        if not isinstance(row, list):
            raise fields.refused(f"messages[{index}]", "must be a list")
        for position, message in enumerate(row):
            # A message with tool calls may have no `content`.
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise fields.refused(f"messages[{index}][{position}]", "must be an object with a role")
        rows.append(row)
    return rows


def _none_for_unsampled(row: list[float], runs: list[tuple[int, int]]) -> tuple[float | None, ...]:
    """The logprobs, with None instead of Atropos' placeholder."""
    logprobs: list[float | None] = [None] * len(row)
    sampled = 0
    for begin, end in runs:
        logprobs[begin:end] = row[begin:end]
        sampled += end - begin
    # Fast path: nearly always the placeholder is exactly where nothing was sampled, which counting shows.
    if UNSAMPLED not in logprobs and row.count(UNSAMPLED) == len(row) - sampled:
        return tuple(logprobs)
    return tuple([None if value == UNSAMPLED else value for value in row])


def _rollout(item_id: str, index: int, score: float, messages: list[Message], sequence: Sequence) -> Rollout:
    return Rollout(
        item_id=item_id,
        index=index,
        seed=0,
        messages=messages,
        score=score,
        stop_reason=StopReason.NATURAL,
        turns_used=sum(message["role"] == "assistant" for message in messages),
        sequences=(sequence,),
    )


def _sampling(params: Mapping[str, Any]) -> Sampling:
    numbers: Iterator[Any] = (params.get(name) for name in ("temperature", "top_p", "top_k"))
    temperature, top_p, top_k = (
        number if type(number) in {int, float} and math.isfinite(number) else None for number in numbers
    )
    return Sampling(
        1.0 if temperature is None else float(temperature),
        None if top_p is None else float(top_p),
        top_k if type(top_k) is int else None,
    )
