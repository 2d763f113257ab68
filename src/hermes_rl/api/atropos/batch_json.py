"""A stored group as the ScoredData that an Atropos trainer reads, in pieces of a sequence each.

Always true: only rollouts with a score that are not withheld are in it, each of one sequence; what came in as
ScoredData goes out as it came. A token that was not sampled is -100 in its mask and has the logprob 1, which is none.
"""

from collections.abc import Callable, Iterator
from itertools import accumulate

import orjson

from hermes_rl import jsontext
from hermes_rl.api.atropos.fields import breathe
from hermes_rl.api.atropos.scored_data import IGNORED, ORIGIN, UNSAMPLED
from hermes_rl.store.codec import GroupView, open_group
from hermes_rl.store.parts import BadGroupError, flags_of

# In run-api's order.
FIELDS = (
    "tokens masks scores advantages ref_logprobs messages generation_params inference_logprobs overrides "
    "group_overrides images env_id distill_token_ids distill_logprobs"
).split()


def scored_data_json(data: bytes, environment: int) -> Iterator[bytes]:
    """The JSON of a group in its binary form; BadGroupError when its rollouts are not of one sequence each."""
    view = open_group(data)
    kept = _kept(view)
    native = _native(view, environment) if kept is None else {}
    columns = _columns(view)
    separator = b"{"
    for name in [*FIELDS, *sorted((kept or {}).keys() - set(FIELDS))]:
        yield separator + orjson.dumps(name) + b":"
        separator = b","
        if kept is not None and name not in {"tokens", "masks", "scores"} and name not in kept:
            yield b"null"
        elif kept is not None and (text := kept.get(name)) is not None:
            yield text.encode()
        elif name == "inference_logprobs" and kept is None and not len(view.columns.logprobs):
            yield b"null"
        elif name in columns:
            yield from columns[name]()
        else:
            yield native.get(name, b"null")
    yield b"}"


def _kept(view: GroupView) -> dict[str, str | None] | None:
    """What ScoredData said that has no column, and None for what has one; None for a group of another origin."""
    if view.group["provenance"].get("versions") != ORIGIN.versions:
        return None
    try:
        item = view.item["item"]
    except BadGroupError:
        return None
    kept = item.get("atropos") if isinstance(item, dict) else None
    # Anybody can say that a group is of this origin.
    sound = isinstance(kept, dict) and all(text is None or isinstance(text, str) for text in kept.values())
    return kept if sound else None


def _native(view: GroupView, environment: int) -> dict[str, bytes]:
    """What a group of ours says besides its columns."""
    sampling = [one["sampling"][0] for one in view.rollouts if one["sampling"]]
    return {
        "generation_params": jsontext.dumps(sampling[0] if sampling else None),
        "env_id": orjson.dumps(environment),
    }


def _columns(view: GroupView) -> dict[str, Callable[[], Iterator[bytes]]]:
    columns = view.columns
    count = len(columns.tokens)
    scored = flags_of(columns.scored, len(columns.sequences))
    chosen = [index for index, about in enumerate(view.rollouts) if scored[index] and about["withheld"] is None]
    if any(columns.sequences[index] != 1 for index in chosen):
        raise BadGroupError("a rollout is not of one sequence, and Atropos knows no other")
    firsts = [0, *accumulate(columns.sequences)]
    ends = [0, *accumulate(columns.lengths)]
    spans = [(ends[firsts[index]], ends[firsts[index] + 1]) for index in chosen]
    masks = flags_of(columns.masks, count)
    marks = flags_of(columns.logprobs_at, count)

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
            # The tokens are what is trained on, and they are whole.
            yield b"null"
            return
        yield from _listed(jsontext.dumps(row) for row in rows)

    def group_overrides() -> Iterator[bytes]:
        yield jsontext.dumps(view.group["group_overrides"])

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
        breathe()
    yield b"]" if opening == b"," else b"[]"
