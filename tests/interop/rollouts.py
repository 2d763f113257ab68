"""Random rollouts in the form of ours: worked examples, tools, images, several sequences, failures."""

from typing import Any

from hypothesis import strategies as st

from hermes_rl.core.errors import Failure, FailureSource
from hermes_rl.core.trajectory import (
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
    Usage,
)

WORDS = st.text(max_size=12)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32)
SCHEMAS = ({"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}},)
ARGUMENTS = st.one_of(
    WORDS,
    st.just("{}"),
    st.sampled_from(['{"a": 1}', '{"a":1}', '{"a": 1.0, "a": 2}', '{"a": NaN}', '{"é": "ü"}', "[1]", '{"a": 1e999}']),
    st.dictionaries(WORDS, st.integers(), max_size=2).map(lambda value: str(value).replace("'", '"')),
)
PARTS = st.lists(
    st.one_of(
        st.builds(lambda text: {"type": "text", "text": text}, WORDS),
        st.sampled_from(
            [
                {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,AAAA"}},
                {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}},
                {"type": "audio", "audio": {"id": "a"}},
            ]
        ),
    ),
    max_size=3,
)
CONTENT = st.one_of(WORDS, st.none(), PARTS)
CALLS = st.lists(
    st.builds(
        lambda number, arguments: {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": "look", "arguments": arguments},
        },
        st.integers(0, 3),
        ARGUMENTS,
    ),
    max_size=3,
)


@st.composite
def messages(draw: st.DrawFn) -> list[dict[str, Any]]:
    said = []
    for role in draw(st.lists(st.sampled_from("system user assistant tool developer".split()), max_size=8)):
        message: dict[str, Any] = {"role": role}
        if draw(st.integers(0, 9)):
            message["content"] = draw(CONTENT)
        if role == "assistant":
            if draw(st.booleans()):
                message["tool_calls"] = draw(CALLS)
            if draw(st.booleans()):
                message["reasoning_content"] = draw(st.one_of(WORDS, st.none()))
        if role == "tool":
            message["tool_call_id"] = f"call_{draw(st.integers(0, 4))}"
        if draw(st.integers(0, 9)) == 0:
            message["name"] = draw(WORDS)
        said.append(message)
    return said


@st.composite
def sequences(draw: st.DrawFn) -> Sequence:
    runs = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), max_size=4))
    mask = [bit for unsampled, sampled in runs for bit in [0] * unsampled + [1] * sampled]
    mask += [0] * draw(st.integers(0, 2))
    count = len(mask)
    tokens = draw(st.lists(st.integers(0, 200_000), min_size=count, max_size=count))
    logprob = st.one_of(NUMBERS, st.none()) if draw(st.integers(0, 5)) == 0 else NUMBERS
    version = draw(st.one_of(st.none(), st.integers(0, 9)))
    begins = [at for at in range(count) if mask[at] and (not at or not mask[at - 1])]
    first = draw(st.integers(0, 3))
    calls = [SampledCall(first + at, begin) for at, begin in enumerate(begins)]
    return Sequence(
        tuple(tokens),
        tuple(mask),
        tuple(draw(logprob) if bit else None for bit in mask),
        tuple(version if bit else None for bit in mask),
        draw(st.builds(Sampling, NUMBERS, st.none() | NUMBERS, st.none(), st.sampled_from([None, "raw"]))),
        tuple(calls) if draw(st.booleans()) else (),
    )


@st.composite
def rollouts(draw: st.DrawFn, index: int = 0) -> Rollout:
    said = draw(messages())
    scored = draw(st.booleans())
    return Rollout(
        item_id="item",
        index=index,
        seed=draw(st.integers(0, 2**32)),
        messages=said,
        score=draw(NUMBERS) if scored else None,
        stop_reason=draw(st.sampled_from(StopReason)) if scored else draw(st.none() | st.just(StopReason.NATURAL)),
        failure=None if scored else Failure(FailureSource.SANDBOX, "died", "no"),
        components=draw(st.dictionaries(WORDS, NUMBERS, max_size=2)),
        turn_scores=tuple(draw(st.lists(NUMBERS, max_size=2))),
        turns_used=draw(st.integers(0, 9)),
        tool_uses=tuple(draw(st.lists(st.builds(ToolUse, st.integers(1, 3), WORDS, WORDS, WORDS, WORDS), max_size=2))),
        usage=draw(st.builds(Usage, st.none() | st.integers(0, 99), st.none() | st.integers(0, 99))),
        timings=tuple(draw(st.lists(st.builds(Timing, st.sampled_from(Span), WORDS, NUMBERS, NUMBERS), max_size=1))),
        seconds=draw(NUMBERS),
        sequences=tuple(draw(st.lists(sequences(), max_size=3))),
        withheld=draw(st.none() | st.just("too_long")),
        metadata=draw(
            st.fixed_dictionaries({}, optional={"prompt_length": st.integers(0, len(said)), "task_id": WORDS})
        ),
    )


@st.composite
def groups(draw: st.DrawFn) -> Group:
    size = draw(st.integers(1, 3))
    return Group(
        item_id="item",
        item=draw(st.none() | WORDS | st.dictionaries(WORDS, WORDS, max_size=2)),
        rollouts=tuple(draw(rollouts(index)) for index in range(size)),
        provenance=draw(st.builds(Provenance, WORDS, WORDS, WORDS, st.just({"hermes-rl": "1"}))),
        tools=("look",),
        split=draw(st.sampled_from(["train", "eval"])),
        id=draw(WORDS),
        draw=draw(st.integers(0, 99)),
        withheld=draw(st.none() | st.just("too_few_scored")),
        tool_schemas=draw(st.sampled_from([(), SCHEMAS])),
        created_at="2026-11-18T20:00:00Z",
        overrides=draw(st.dictionaries(WORDS, st.booleans(), max_size=1)),
    )
