"""Atropos' ScoredData read into a group of ours, and refused by the field's name where it makes none.

Always true: all that was posted comes back by `batch_json`, fields that Atropos does not know too; logprobs are rounded
to float32, and every other number stays as it was. What has no column of ours is kept as its JSON text in the item. A
list that is empty beside sequences says nothing, as the ones that atroposlib's own collect_trajectories sends.

Atropos does not say why a rollout stopped (`natural` stands there), by which policy its tokens were sampled (no version
does) and at what temperature (1 unless `generation_params` has one). A post has no id, so its content is its id: the
same content from the same environment counts once.
"""

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hermes_rl.api.atropos.fields import INT64, Fields, breathe, shown
from hermes_rl.api.atropos.splitting import Value, split_object, split_objects
from hermes_rl.api.problems import RefusedError
from hermes_rl.messages import Message
from hermes_rl.store.codec import encode
from hermes_rl.trajectory import Group, Provenance, Rollout, Sampling, Sequence, StopReason

# Says of a group that it came by this protocol.
ORIGIN = Provenance("atropos", "", "", {"atropos-protocol": "0.4.0"})
IGNORED = -100
UNSAMPLED = 1.0
SAMPLED = re.compile(rb"\x01+")
LARGEST_FLOAT32 = 3.4028234663852886e38
# One list a sequence, as long as the sequence.
PARALLEL = ("advantages", "ref_logprobs")
# One element a sequence.
BESIDE = ("overrides", "distill_token_ids", "distill_logprobs")
# Those kept in columns of ours: their text stands in the item only where the columns cannot say it.
OURS = frozenset({"tokens", "masks", "scores", "messages", "inference_logprobs", "group_overrides"})


def read_scored_data(text: bytes) -> tuple[int | None, bytes]:
    """The environment's number and the group in its binary form; RefusedError that names the field."""
    return _encoded(_cut(lambda: split_object(text)), "")


def read_scored_data_list(text: bytes) -> list[tuple[int | None, bytes]]:
    """The same of each group in a list; refused as a whole when one of them is."""
    parts = _cut(lambda: list(split_objects(text)))
    return [_encoded(members, f"[{number}].") for number, members in enumerate(parts)]


def _cut(split: Callable[[], Any]) -> Any:
    try:
        return split()
    except ValueError as error:
        raise RefusedError(422, "invalid", f"the body is no JSON of this shape: {error}", field="body") from None


def _encoded(members: Mapping[str, Value], prefix: str) -> tuple[int | None, bytes]:
    fields = Fields(members, prefix)
    environment = _environment(fields)
    group = _group(fields)
    breathe()
    return environment, encode(group)


def _environment(fields: Fields) -> int | None:
    number = fields.read("env_id") if "env_id" in fields.given else None
    if number is not None and (type(number) is not int or not -INT64 <= number < INT64):
        raise fields.refused("env_id", f"a whole number or null, not {shown(number)}")
    return number


def _group(fields: Fields) -> Group:
    tokens = fields.lists("tokens", fields.whole_numbers)
    lengths = [len(row) for row in tokens]
    if 0 in lengths:
        raise fields.refused(f"tokens[{lengths.index(0)}]", "a sequence has one token at least")
    masks = fields.lists("masks", fields.whole_numbers, lengths)
    scores = _scores(fields, len(tokens))
    kept: dict[str, str | None] = {}
    logprobs = _logprobs(fields, lengths, kept)
    messages = _messages(fields, len(tokens), kept)
    overrides = fields.mapping("group_overrides")
    sampling = _sampling(fields.mapping("generation_params"))
    for name in PARALLEL:
        if fields.says(name):
            fields.lists(name, fields.numbers, lengths)
    for name in BESIDE:
        if fields.says(name):
            fields.elements(name, len(tokens))
    item_id = hashlib.sha256(fields.given["tokens"].text).hexdigest()[:16]
    rollouts = []
    usual = True
    for index, (row, mask) in enumerate(zip(tokens, masks, strict=True)):
        flags = bytes(map(IGNORED.__ne__, mask))
        runs = [run.span() for run in SAMPLED.finditer(flags)]
        usual = usual and all(mask[begin:end] == row[begin:end] for begin, end in runs)
        said = _none_for_unsampled(logprobs[index], runs) if logprobs else (None,) * len(row)
        sequence = Sequence(tuple(row), tuple(flags), said, (None,) * len(row), sampling)
        rollouts.append(_rollout(item_id, index, scores[index], messages[index], sequence))
    for name in fields.given.keys() - (OURS if usual else OURS - {"masks"}):
        kept[name] = fields.text(name)
    if "group_overrides" in fields.given:
        kept["group_overrides"] = None
    return Group(
        item_id=item_id,
        item={"atropos": dict(sorted(kept.items()))},
        rollouts=tuple(rollouts),
        provenance=ORIGIN,
        overrides=overrides,
    )


def _scores(fields: Fields, count: int) -> list[float]:
    scores = fields.array("scores", fields.value("scores").text)
    if len(scores) != count:
        raise fields.refused("scores", f"{len(scores)} of them for {count} sequences in tokens")
    for index, score in enumerate(scores):
        # A verdict of true or false is a score to Atropos.
        if not isinstance(score, int | float):
            raise fields.refused(f"scores[{index}]", f"a finite number, not {shown(score)}")
    return [float(score) for score in scores]


def _logprobs(fields: Fields, lengths: list[int], kept: dict[str, str | None]) -> list[list[float]]:
    name = "inference_logprobs"
    if not fields.says(name):
        if name in fields.given:
            kept[name] = "[]"
        return []
    kept[name] = None
    rows = fields.lists(name, fields.numbers, lengths)
    for index, row in enumerate(rows):
        if max(row) > LARGEST_FLOAT32 or min(row) < -LARGEST_FLOAT32:
            raise fields.refused(f"{name}[{index}]", "a logprob is beyond what float32 holds")
    return rows


def _messages(fields: Fields, count: int, kept: dict[str, str | None]) -> list[list[Message]]:
    if not fields.says("messages"):
        if "messages" in fields.given:
            kept["messages"] = "[]"
        return [[] for _ in range(count)]
    kept["messages"] = None
    rows = []
    for index, text in enumerate(fields.elements("messages", count)):
        row = fields.parsed(f"messages[{index}]", text)
        if not isinstance(row, list):
            raise fields.refused(f"messages[{index}]", "a list")
        for place, message in enumerate(row):
            # What calls tools need not say anything, so that there is no `content` is no fault.
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise fields.refused(f"messages[{index}][{place}]", "an object with a role")
        rows.append(row)
    return rows


def _none_for_unsampled(row: list[float], runs: list[tuple[int, int]]) -> tuple[float | None, ...]:
    """The logprobs, None where the value is Atropos' for none."""
    said: list[float | None] = [None] * len(row)
    taken = 0
    for begin, end in runs:
        said[begin:end] = row[begin:end]
        taken += end - begin
    # Nearly always the value stands where nothing was sampled and nowhere else, which to count is fastest.
    if UNSAMPLED not in said and row.count(UNSAMPLED) == len(row) - taken:
        return tuple(said)
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
