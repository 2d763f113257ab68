"""A stored group as Atropos ScoredData JSON, produced one sequence at a time.

Contains only scored rollouts that are not withheld, one sequence each; groups posted as ScoredData come out unchanged.
A token that was not sampled has mask -100 and the placeholder logprob 1.
"""

from collections.abc import Callable, Iterator
from itertools import accumulate

import orjson

from hermes_rl.api.atropos.fields import yield_gil
from hermes_rl.api.atropos.scored_data import IGNORED, ORIGIN, UNSAMPLED
from hermes_rl.core import fast_json
from hermes_rl.store.codec import GroupView, open_group
from hermes_rl.store.container import BadGroupError, unpack_bits

# In run-api's order.
FIELDS = (
    "tokens masks scores advantages ref_logprobs messages generation_params inference_logprobs overrides "
    "group_overrides images env_id distill_token_ids distill_logprobs"
).split()


def scored_data_json(data: bytes, environment: int) -> Iterator[bytes]:
    """The JSON of a group in its binary form; BadGroupError unless every rollout is one sequence."""
    view = open_group(data)
    posted = _posted_fields(view)
    native = _native(view, environment) if posted is None else {}
    columns = _columns(view)
    separator = b"{"
    for name in [*FIELDS, *sorted((posted or {}).keys() - set(FIELDS))]:
        yield separator + orjson.dumps(name) + b":"
        separator = b","
        if posted is not None and name not in {"tokens", "masks", "scores"} and name not in posted:
            yield b"null"
        elif posted is not None and (text := posted.get(name)) is not None:
            yield text.encode()
        elif name == "inference_logprobs" and posted is None and not len(view.columns.logprobs):
            yield b"null"
        elif name in columns:
            yield from columns[name]()
        else:
            yield native.get(name, b"null")
    yield b"}"


def _posted_fields(view: GroupView) -> dict[str, str | None] | None:
    """Posted fields as JSON text, None for those stored in columns; None for a group not posted as ScoredData."""
    if view.group["provenance"].get("versions") != ORIGIN.versions:
        return None
    try:
        item = view.item["item"]
    except BadGroupError:
        return None
    posted = item.get("atropos") if isinstance(item, dict) else None
    # Any client can claim this origin for its group.
    valid = isinstance(posted, dict) and all(text is None or isinstance(text, str) for text in posted.values())
    return posted if valid else None


def _native(view: GroupView, environment: int) -> dict[str, bytes]:
    """Fields of a native group that are not columns."""
    sampling = [rollout["sampling"][0] for rollout in view.rollouts if rollout["sampling"]]
    return {
        "generation_params": fast_json.dumps(sampling[0] if sampling else None),
        "env_id": orjson.dumps(environment),
    }


def _columns(view: GroupView) -> dict[str, Callable[[], Iterator[bytes]]]:
    columns = view.columns
    count = len(columns.tokens)
    scored = unpack_bits(columns.scored, len(columns.sequences))
    chosen = [index for index, rollout in enumerate(view.rollouts) if scored[index] and rollout["withheld"] is None]
    if any(columns.sequences[index] != 1 for index in chosen):
        raise BadGroupError("a rollout does not have exactly one sequence, as Atropos requires")
    firsts = [0, *accumulate(columns.sequences)]
    ends = [0, *accumulate(columns.lengths)]
    spans = [(ends[firsts[index]], ends[firsts[index] + 1]) for index in chosen]
    masks = unpack_bits(columns.masks, count)
    marks = unpack_bits(columns.logprobs_at, count)

    def tokens(begin: int, end: int) -> list[int]:
        return columns.tokens[begin:end].tolist()

    def mask(begin: int, end: int) -> list[int]:
        flags = masks[begin:end]
        return [token if flag else IGNORED for token, flag in zip(tokens(begin, end), flags, strict=True)]

    def logprobs(begin: int, end: int) -> list[float]:
        first = marks.count(1, 0, begin)
        values = iter(columns.logprobs[first : first + marks.count(1, begin, end)].tolist())
        return [next(values) if mark else UNSAMPLED for mark in marks[begin:end]]

    def scores() -> Iterator[bytes]:
        values = [columns.scores[sum(scored[:index])] for index in chosen]
        yield orjson.dumps(values)

    def messages() -> Iterator[bytes]:
        try:
            rows = [view.conversations[index]["messages"] for index in chosen]
        except BadGroupError:
            # Training only needs the tokens, and those are intact.
            yield b"null"
            return
        yield from _listed(fast_json.dumps(row) for row in rows)

    def group_overrides() -> Iterator[bytes]:
        yield fast_json.dumps(view.group["group_overrides"])

    return {
        "tokens": lambda: _listed(orjson.dumps(tokens(*span)) for span in spans),
        "masks": lambda: _listed(orjson.dumps(mask(*span)) for span in spans),
        "scores": scores,
        "messages": messages,
        "inference_logprobs": lambda: _listed(orjson.dumps(logprobs(*span)) for span in spans),
        "group_overrides": group_overrides,
    }


def _listed(elements: Iterator[bytes]) -> Iterator[bytes]:
    opening = b"["
    for element in elements:
        yield opening + element
        opening = b","
        yield_gil()
    yield b"]" if opening == b"," else b"[]"
