"""Groups as the store has them, made by hand or drawn at random."""

import re
from collections.abc import Sequence as Listed
from functools import partial
from typing import Any

from hypothesis import strategies as st

from hermes_rl.core.errors import Failure, FailureSource
from hermes_rl.core.trajectory import Group, Provenance, Rollout, SampledCall, Sampling, Sequence, StopReason

RAW = Sampling(1.0, logprobs="raw")
SOURCE = Provenance("words", "hash", "model", {"hermes-rl": "0"})
SPANS = re.compile("#+")
FAILED = Failure(FailureSource.SANDBOX, "start", "no machine")

# Multiples of an eighth, so that equal scores are equal however they are added up; 0.1 is what is not.
SCORES = st.integers(-8, 8).map(lambda eighths: eighths / 8) | st.just(0.1) | st.just(-0.0)
WAYS = st.sampled_from(
    [
        *[RAW] * 6,
        Sampling(1.0),
        Sampling(0.7, logprobs="processed"),
        Sampling(0.7, logprobs="raw"),
        Sampling(0.7),
        Sampling(1.0, 0.9, None, "processed"),
        Sampling(1.0, None, 20, "processed"),
        Sampling(0.0, logprobs="raw"),
        Sampling(-1.0),
        Sampling(1.0, 1.0, -1),
    ]
)


def sequence(
    mask: str,
    *,
    version: int | Listed[int] = 0,
    sampling: Sampling = RAW,
    first: int = 10,
    logprob: float = -0.5,
    calls: Listed[int] = (),
) -> Sequence:
    """A mask such as "..##.#", `#` for what was sampled; every token has an id of its own.

    `calls` numbers the model calls of the sampled spans, from left to right.
    """
    sampled = [mark == "#" for mark in mask]
    versions = [version] * len(mask) if isinstance(version, int) else version
    return Sequence(
        tokens=tuple(range(first, first + len(mask))),
        mask=tuple(map(int, sampled)),
        logprobs=tuple(logprob - place / 100 if one else None for place, one in enumerate(sampled)),
        versions=tuple(said if one else None for said, one in zip(versions, sampled, strict=True)),
        sampling=sampling,
        calls=tuple(
            SampledCall(call, span.start()) for call, span in zip(calls, SPANS.finditer(mask), strict=bool(calls))
        ),
    )


def rollout(score: float | None, *sequences: Sequence | str, **more: Any) -> Rollout:
    """A rollout of as many turns as its sequences have sampled spans."""
    made = tuple(sequence(one) if isinstance(one, str) else one for one in sequences)
    known: dict[str, Any] = {
        "item_id": "i",
        "index": 0,
        "seed": 0,
        "messages": [],
        "stop_reason": None if score is None else StopReason.NATURAL,
        "failure": FAILED if score is None else None,
        "turns_used": sum(len(SPANS.findall("".join(".#"[mark] for mark in one.mask))) for one in made),
    }
    return Rollout(score=score, sequences=made, **known | more)


def group(*rollouts: Rollout, **more: Any) -> Group:
    return Group(**{"item_id": "i", "item": None, "rollouts": rollouts, "provenance": SOURCE} | more)


@st.composite
def sequences(draw: st.DrawFn) -> Sequence:
    """Of one or several turns, of one or several versions, some with a hole in their columns."""
    size = draw(st.integers(0, 14))
    column = partial(st.lists, min_size=size, max_size=size)
    mask = draw(column(st.integers(0, 1)))
    logprobs: list[float | None] = draw(column(st.floats(-30, 0, width=32)))
    versions: list[int | None] = draw(column(st.integers(0, 7)))
    if draw(st.integers(0, 5)):
        # Else they stand where nothing was sampled too, as in some groups from outside.
        logprobs = [value if kept else None for value, kept in zip(logprobs, mask, strict=True)]
        versions = [value if kept else None for value, kept in zip(versions, mask, strict=True)]
    for values in (logprobs, versions):
        if size and not draw(st.integers(0, 9)):
            values[draw(st.integers(0, size - 1))] = None
    tokens = draw(column(st.integers(0, 200_000)))
    calls: tuple[SampledCall, ...] = ()
    if any(mask) and draw(st.integers(0, 2)):
        # A call may begin anywhere, since calls can follow each other without a token between them.
        begins = sorted(draw(st.sets(st.integers(0, size - 1), max_size=3)) | {draw(st.integers(0, mask.index(1)))})
        calls = tuple(SampledCall(draw(st.integers(0, 5)), begin) for begin in begins)
    return Sequence(tuple(tokens), tuple(mask), tuple(logprobs), tuple(versions), draw(WAYS), calls)


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    return rollout(
        draw(SCORES) if draw(st.integers(0, 7)) else None,
        *draw(st.lists(sequences(), min_size=1, max_size=3)),
        turn_scores=tuple(draw(st.lists(SCORES, max_size=4))) if draw(st.booleans()) else (),
        withheld=draw(st.sampled_from([*[None] * 8, "too_long", "no_tokens"])),
        components={"tests": 0.5} if draw(st.booleans()) else {},
        **({"turns_used": draw(st.integers(0, 6))} if draw(st.booleans()) else {}),
        **({"stop_reason": draw(st.sampled_from(StopReason))} if draw(st.booleans()) else {}),
    )


@st.composite
def groups(draw: st.DrawFn) -> Group:
    return group(
        *draw(st.lists(rollouts(), max_size=5)),
        withheld="equal_scores" if not draw(st.integers(0, 9)) else None,
        overrides={"set_advantage_to_zero": draw(st.booleans())} if not draw(st.integers(0, 9)) else {},
    )
