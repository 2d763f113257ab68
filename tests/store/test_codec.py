import json
import random
import struct
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import chain, groupby
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_rl.core import fast_json
from hermes_rl.core.errors import Failure, FailureSource, HermesRLError
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
    TurnState,
    Usage,
)
from hermes_rl.store.codec import MAX_SEQUENCES, VERSION_CHUNK, decode, encode, open_group
from hermes_rl.store.container import (
    HEADER_OFFSET,
    JSON,
    PRELUDE,
    STRUCT_CODES,
    BadGroupError,
    PartContent,
    bits_part,
    column_part,
    frame,
    json_part,
    pack_parts,
    unpack_parts,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# A busy machine is no failure.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
MUTATIONS = 20_000

PROVENANCE = Provenance("e", "h", "m", {"hermes-rl": "1"}, "c", "d", "i")
SEQUENCE = Sequence((7, 8, 9, 10), (0, 1, 1, 0), (None, -0.5, 0.0, None), (None, 3, 4, None), Sampling(1.0))
ROLLOUT = Rollout(
    item_id="i",
    index=0,
    seed=1,
    messages=[{"role": "assistant", "content": "done"}],
    score=0.25,
    stop_reason=StopReason.NATURAL,
    components={"tests": 1.0},
    turn_scores=(0.5,),
    turns_used=1,
    tool_uses=(ToolUse(0, "call", "terminal", "{}", "ok"),),
    usage=Usage(3, 1),
    timings=(Timing(Span.MODEL, "m", 0.0, 1.5),),
    seconds=2.5,
    sequences=(SEQUENCE,),
    withheld="too_long",
    metadata={"task_id": "t"},
)
UNSCORED = Rollout(
    item_id="i",
    index=1,
    seed=2,
    messages=[],
    failure=Failure(FailureSource.SANDBOX, "start", "no"),
    sequences=(SEQUENCE,) * 2,
)
GROUP = Group(
    item_id="i",
    item={"question": "?"},
    rollouts=(ROLLOUT, UNSCORED),
    provenance=PROVENANCE,
    tools=("terminal",),
    split="train",
    id="g",
    draw=3,
    withheld="equal_scores",
    tool_schemas=({"name": "terminal"},),
    created_at="2026-11-15T00:00:00Z",
    overrides={"weight": 2},
)
DATA = encode(GROUP)

FINITE = st.floats(allow_nan=False, allow_infinity=False)
LOGPROBS = st.floats(allow_nan=False, allow_infinity=False, width=32)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=3)


def tuples(values: st.SearchStrategy[Any], max_size: int, min_size: int = 0) -> st.SearchStrategy[Any]:
    return st.lists(values, min_size=min_size, max_size=max_size).map(tuple)


@st.composite
def sequences(draw: st.DrawFn) -> Sequence:
    """As the recorder makes them, and with values where the mask has none, as they may come from outside."""
    size = draw(st.integers(0, 20))
    column = partial(tuples, min_size=size, max_size=size)
    mask = draw(column(st.integers(0, 1)))
    logprobs, versions = draw(column(LOGPROBS)), draw(column(st.integers(0, 3) | st.integers(-(2**63), 2**63 - 1)))
    marks = [draw(column(st.integers(0, 1))) if draw(st.booleans()) else mask for _ in range(2)]
    return Sequence(
        tokens=draw(column(st.integers(0, 200_000)) | column(st.integers(-(2**63), 2**63 - 1))),
        mask=mask,
        logprobs=tuple(value if mark else None for value, mark in zip(logprobs, marks[0], strict=True)),
        versions=tuple(value if mark else None for value, mark in zip(versions, marks[1], strict=True)),
        sampling=draw(
            st.builds(Sampling, FINITE, st.none() | FINITE, st.none() | st.integers(0, 9), st.none() | st.just("raw"))
        ),
        calls=tuple(
            SampledCall(draw(st.integers(0, 9)), begin)
            for begin in sorted(draw(st.sets(st.integers(0, size - 1), max_size=3)) if size else ())
        ),
    )


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    score = draw(st.none() | FINITE)
    reasons = st.sampled_from(StopReason)
    return Rollout(
        item_id=draw(st.text()),
        index=draw(st.integers(0, 64)),
        seed=draw(st.integers(0, 2**64)),
        messages=draw(st.lists(OBJECTS, max_size=2)),
        score=score,
        stop_reason=draw(reasons if score is not None else st.none() | reasons),
        failure=None
        if score is not None
        else draw(st.builds(Failure, st.sampled_from(FailureSource), st.text(), st.text())),
        components=draw(st.dictionaries(st.text(), FINITE, max_size=2)),
        turn_scores=draw(tuples(FINITE, max_size=2)),
        turns_used=draw(st.integers(0, 100)),
        tool_uses=draw(tuples(st.builds(ToolUse, st.integers(), *[st.text()] * 4, st.none() | st.text()), max_size=2)),
        usage=draw(st.builds(Usage, st.none() | st.integers(0), st.none() | st.integers(0))),
        timings=draw(tuples(st.builds(Timing, st.sampled_from(Span), st.text(), FINITE, FINITE), max_size=2)),
        seconds=draw(FINITE),
        sequences=draw(tuples(sequences(), max_size=3)),
        withheld=draw(st.none() | st.text()),
        metadata=draw(OBJECTS),
        states=draw(tuples(st.builds(TurnState, st.integers(0, 9), VALUES), max_size=2)),
        notes=draw(st.dictionaries(st.text(), st.text(), max_size=2)),
        seat=draw(st.none() | st.text()),
    )


GROUPS = st.builds(
    Group,
    item_id=st.text(),
    item=VALUES,
    rollouts=tuples(rollouts(), max_size=3),
    provenance=st.builds(
        Provenance,
        *[st.text()] * 3,
        st.dictionaries(st.text(), st.text(), max_size=2),
        st.text(),
        st.none() | st.text(),
        st.none() | st.text(),
    ),
    tools=tuples(st.text(), max_size=2),
    split=st.sampled_from(["train", "eval"]),
    id=st.text(),
    draw=st.integers(),
    withheld=st.none() | st.text(),
    tool_schemas=tuples(OBJECTS, max_size=2),
    created_at=st.text(),
    overrides=OBJECTS,
)


def content_id(group: Group) -> str:
    return open_group(encode(group)).id


def with_sequence(**changes: Any) -> Group:
    sequence = replace(SEQUENCE, **changes)
    return replace(GROUP, rollouts=(replace(ROLLOUT, sequences=(sequence,)), UNSCORED))


def turned_round(value: Any) -> Any:
    """The same value with the keys of every object in the other order."""
    if isinstance(value, dict):
        return {key: turned_round(value[key]) for key in reversed(value)}
    return [turned_round(part) for part in value] if isinstance(value, list) else value


def contents_of(data: bytes) -> dict[str, PartContent]:
    """The parts of a group, to be changed and sealed again with checksums and an id that are right."""
    end = HEADER_OFFSET + PRELUDE.unpack_from(data)[2]
    header, body, parts = fast_json.loads(data[HEADER_OFFSET:end]), data[end + -end % 8 :], unpack_parts(data)
    contents = {}
    for said in header["parts"]:
        raw = body[said["offset"] : said["offset"] + said["length"]]
        name, kind = said["name"], said["type"]
        contents[name] = (
            json_part(name, parts.json(name)) if kind == JSON else PartContent(name, kind, said["size"], raw, raw)
        )
    return contents


def with_part(content: PartContent) -> bytes:
    return pack_parts({**contents_of(DATA), content.name: content}.values())


def is_group(data: bytes) -> bool:
    """Whether it can be decoded; any other error than the one for that comes through."""
    try:
        decode(data, limit=2**20)
    except BadGroupError:
        return False
    return True


@UNHURRIED
@given(GROUPS)
def test_a_group_comes_back_as_it_went(group: Group) -> None:
    assert decode(encode(group)) == group


@UNHURRIED
@given(GROUPS)
def test_a_group_that_came_back_is_written_as_the_same_bytes(group: Group) -> None:
    data = encode(group)
    assert encode(decode(data)) == data


@pytest.mark.parametrize(
    "group",
    [
        GROUP,
        replace(GROUP, rollouts=()),
        replace(GROUP, rollouts=(UNSCORED,)),
        replace(GROUP, rollouts=(replace(ROLLOUT, sequences=()),) * 3),
        replace(GROUP, rollouts=(replace(ROLLOUT, sequences=(SEQUENCE, Sequence((), (), (), (), Sampling(0.0)))),)),
        with_sequence(logprobs=(None,) * 4, versions=(None,) * 4),
        with_sequence(logprobs=(-1.0,) * 4, versions=(1,) * 4),
        with_sequence(mask=(0,) * 4),
        with_sequence(mask=(1,) * 4),
        with_sequence(calls=(SampledCall(2, 1), SampledCall(0, 2))),
    ],
    ids="whole empty unscored chat no_tokens unknown_logprobs unsampled_logprobs nothing_sampled all_sampled "
    "calls".split(),
)
def test_every_shape_of_group_comes_back(group: Group) -> None:
    assert decode(encode(group)) == group


def test_a_group_without_calls_is_written_as_by_older_versions() -> None:
    assert all("calls" not in record for record in open_group(DATA).rollouts)


@pytest.mark.parametrize("calls", ["ab", [], [[[0, 4]]], [[[0, 2], [1, 1]]], [[[-1, 0]]], [[[0]]], [[0]], [[["a", 1]]]])
def test_calls_that_fit_to_no_tokens_are_refused(calls: Any) -> None:
    records = open_group(DATA).rollouts
    records[0]["calls"] = calls
    with pytest.raises(BadGroupError):
        decode(with_part(json_part("rollouts", records)))


def test_logprobs_are_rounded_to_float32() -> None:
    group = decode(encode(with_sequence(logprobs=(None, -0.1, -1e-50, None))))
    (rounded,) = struct.unpack("<f", struct.pack("<f", -0.1))
    assert group.rollouts[0].sequences[0].logprobs == (None, rounded, 0.0, None)


def test_scores_are_kept_to_the_last_bit() -> None:
    assert decode(encode(replace(GROUP, rollouts=(replace(ROLLOUT, score=0.1 + 0.2),)))).scores == [0.1 + 0.2]


def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    group = replace(GROUP, rollouts=(replace(ROLLOUT, messages=[{"content": "a\ud83d \U0001f600"}]),))
    assert decode(encode(group)).rollouts[0].messages == [{"content": "a\ufffd \U0001f600"}]


def test_token_ids_take_four_bytes_when_all_of_them_fit() -> None:
    assert open_group(encode(with_sequence(tokens=(2**31 - 1, 0, 1, 2)))).columns.tokens.itemsize == 4


def test_token_ids_take_eight_bytes_when_one_does_not_fit_four() -> None:
    assert open_group(encode(with_sequence(tokens=(2**31, 0, 1, 2)))).columns.tokens.itemsize == 8


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"logprobs": (None, float("nan"), 0.0, None)}, "a logprob is NaN or infinite"),
        ({"logprobs": (None, float("-inf"), 0.0, None)}, "a logprob is NaN or infinite"),
        ({"logprobs": (None, -1e300, 0.0, None)}, "a value of the column 'logprobs' does not fit f32"),
        ({"logprobs": (None, "0", 0.0, None)}, "a value of the column 'logprobs' does not fit f32"),
        ({"versions": (None, 2**63, 0, None)}, "a value of the column 'versions' does not fit i64"),
        ({"tokens": (2**63, 0, 0, 0)}, "a value of the column 'tokens' does not fit i64"),
        ({"tokens": (0.5, 0, 0, 0)}, "a value of the column 'tokens' does not fit i64"),
        ({"mask": (0, 2, 1, 0)}, "a mask holds values other than 0 and 1"),
        ({"mask": (0, -1, 1, 0)}, "a mask holds values other than 0 and 1"),
        ({"mask": (0, None, 1, 0)}, "a mask holds values other than 0 and 1"),
    ],
)
def test_a_number_that_has_no_place_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadGroupError, match=complaint):
        encode(with_sequence(**changes))


def test_a_large_finite_logprob_is_kept() -> None:
    group = with_sequence(logprobs=(None, -(2.0**127), 0.0, None))
    assert decode(encode(group)) == group


@UNHURRIED
@given(GROUPS)
def test_equal_groups_have_equal_ids_whatever_the_order_of_their_keys(group: Group) -> None:
    other = replace(
        group,
        item=turned_round(group.item),
        overrides=turned_round(dict(group.overrides)),
        tool_schemas=tuple(turned_round(dict(schema)) for schema in group.tool_schemas),
        rollouts=tuple(replace(one, messages=turned_round(one.messages)) for one in group.rollouts),
    )
    assert other == group
    assert content_id(other) == content_id(group)


@UNHURRIED
@given(VALUES, VALUES)
def test_different_items_have_different_ids(one: Any, other: Any) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (content_id(replace(GROUP, item=one)) == content_id(replace(GROUP, item=other))) == same


def test_true_and_one_and_one_point_zero_are_three_contents() -> None:
    assert len({content_id(replace(GROUP, item=item)) for item in (True, 1, 1.0)}) == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"item_id": "j"},
        {"item": {"question": "!"}},
        {"tools": ()},
        {"split": "eval"},
        {"id": "h"},
        {"draw": 4},
        {"withheld": None},
        {"tool_schemas": ()},
        {"created_at": ""},
        {"overrides": {}},
        {"provenance": replace(PROVENANCE, model="n")},
        {"rollouts": (UNSCORED, ROLLOUT)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_changed_field_of_the_group_changes_the_id(changes: dict[str, Any]) -> None:
    assert content_id(replace(GROUP, **changes)) != content_id(GROUP)


@pytest.mark.parametrize(
    "changes",
    [
        {"item_id": "j"},
        {"index": 5},
        {"seed": 5},
        {"messages": []},
        {"score": 0.5},
        {"stop_reason": StopReason.LENGTH},
        {"components": {}},
        {"turn_scores": ()},
        {"turns_used": 2},
        {"tool_uses": ()},
        {"usage": Usage()},
        {"timings": ()},
        {"seconds": 0.0},
        {"sequences": ()},
        {"withheld": None},
        {"metadata": {}},
        {"states": (TurnState(0, None),)},
        {"notes": {"judge": "good"}},
        {"seat": "buyer"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_changed_field_of_a_rollout_changes_the_id(changes: dict[str, Any]) -> None:
    assert content_id(replace(GROUP, rollouts=(replace(ROLLOUT, **changes), UNSCORED))) != content_id(GROUP)


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": (7, 8, 9, 11)},
        {"mask": (0, 1, 0, 0)},
        {"logprobs": (None, -0.25, 0.0, None)},
        {"logprobs": (None, None, 0.0, None)},
        {"versions": (None, 4, 4, None)},
        {"sampling": Sampling(0.5)},
    ],
    ids="token mask logprob no_logprob version sampling".split(),
)
def test_a_changed_field_of_a_sequence_changes_the_id(changes: dict[str, Any]) -> None:
    assert content_id(with_sequence(**changes)) != content_id(GROUP)


def test_a_view_gives_the_numbers_of_all_sequences_in_place() -> None:
    columns = open_group(DATA).columns
    assert columns.tokens.obj is DATA
    assert columns.sequences.tolist() == [1, 2]
    assert columns.lengths.tolist() == [4, 4, 4]
    assert columns.tokens.tolist() == [7, 8, 9, 10] * 3
    assert columns.masks.tolist() == [0b01100110, 0b01100000]
    assert columns.logprobs.tolist() == [-0.5, 0.0] * 3
    assert (columns.versions.tolist(), columns.version_runs.tolist()) == ([3, 4] * 3, [1] * 6)
    assert (columns.scored.tolist(), columns.scores.tolist()) == ([0b10000000], [0.25])


def test_a_version_stands_once_for_all_the_tokens_it_sampled_in_a_row() -> None:
    columns = open_group(encode(with_sequence(versions=(None, 4, 4, None)))).columns
    assert (columns.versions.tolist(), columns.version_runs.tolist()) == ([4, 3, 4, 3, 4], [2, 1, 1, 1, 1])


@UNHURRIED
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2 * VERSION_CHUNK)), max_size=6))
def test_versions_that_last_for_long_come_back(runs: list[tuple[int, int]]) -> None:
    versions = tuple(chain.from_iterable([version] * length for version, length in runs))
    count = len(versions)
    sequence = Sequence((0,) * count, (1,) * count, (-1.0,) * count, versions, Sampling(1.0))
    data = encode(replace(GROUP, rollouts=(replace(ROLLOUT, sequences=(sequence,)),)))
    assert decode(data).rollouts[0].sequences == (sequence,)
    assert open_group(data).columns.versions.tolist() == [version for version, _ in groupby(versions)]


def test_a_view_does_not_need_the_messages_to_give_the_numbers_and_what_is_said_of_the_rollouts() -> None:
    view = open_group(with_part(PartContent("conversations", JSON, 5, b"torn!", b"")))
    assert view.columns.scores.tolist() == [0.25]
    assert view.group["draw"] == 3
    assert [rollout["withheld"] for rollout in view.rollouts] == ["too_long", None]
    assert view.item["item"] == {"question": "?"}
    with pytest.raises(BadGroupError, match="'conversations' cannot be decompressed"):
        _ = view.conversations


def test_a_view_reads_what_lies_in_a_longer_buffer() -> None:
    assert open_group(memoryview(b"before" + DATA + b"after")[6:-5]).columns.scores.tolist() == [0.25]


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_a_changed_byte_is_found_wherever_it_is(flip: int) -> None:
    found = 0
    for place in range(len(DATA)):
        data = bytearray(DATA)
        data[place] ^= flip
        with pytest.raises(BadGroupError):
            decode(data)
        found += 1
    assert found == len(DATA)


def test_a_group_torn_anywhere_is_found() -> None:
    for end in range(len(DATA)):
        with pytest.raises(BadGroupError):
            open_group(DATA[:end])


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (column_part("sequences", "u32", [1, 1]), "lengths has 3, sequences gives 2"),
        (column_part("lengths", "u32", [4, 4, 2**32 - 1]), "tokens has 12, lengths gives 4294967303"),
        (bits_part("masks", b"\0\1\1\0"), "masks has 4, tokens gives 12"),
        (bits_part("logprobs_at", b"\1\1\1"), "logprobs_at has 3, tokens gives 12"),
        (bits_part("masks", b"\0" * 12), "logprobs has 6, marks gives 0"),
        (column_part("logprobs", "f32", [0.0]), "logprobs has 1, marks gives 6"),
        (column_part("logprobs", "f32", [float("nan")] * 6), "a logprob is NaN or infinite"),
        (column_part("versions", "i64", [3]), "versions has 1, version_runs gives 6"),
        (column_part("version_runs", "u32", [1, 1, 1, 1, 1, 2**32 - 1]), "version_runs has 4294967300, marks gives 6"),
        (column_part("scores", "f64", [0.0, 0.0]), "scores has 2, scored gives 1"),
        (column_part("scores", "f64", [float("inf")]), "a score is NaN or infinite"),
        (bits_part("scored", b"\1"), "scored has 1, sequences gives 2"),
        (column_part("tokens", "u32", [0] * 12), "'tokens' is of type 'u32'"),
        (json_part("rollouts", []), "'rollouts' is not a list with one entry for each of 2"),
        (json_part("conversations", {"0": {}, "1": {}}), "'conversations' is not a list with one entry for each of 2"),
        (json_part("conversations", [{}, 1]), r"conversations\[0\].messages must be a list, not a NoneType"),
        (json_part("group", "text"), "group is not an object"),
        (json_part("group", {"tools": "text"}), "group.tools must be a list, not a str"),
        (
            json_part("group", {"tools": [], "provenance": {}, "group_overrides": {}}),
            "its JSON is not a valid group: KeyError",
        ),
    ],
)
def test_parts_that_make_no_group_are_refused_by_name(content: PartContent, complaint: str) -> None:
    with pytest.raises(BadGroupError, match=complaint):
        decode(with_part(content))


def test_a_rollout_that_does_not_say_how_each_sequence_was_sampled_is_refused() -> None:
    said = open_group(DATA).rollouts
    said[1]["sampling"].pop()
    with pytest.raises(BadGroupError, match="a rollout has 2 sequences but 1 sampling entries"):
        decode(with_part(json_part("rollouts", said)))


def test_a_score_with_a_failure_is_refused() -> None:
    with pytest.raises(BadGroupError, match="either a score or a failure"):
        decode(
            pack_parts(
                {
                    **contents_of(DATA),
                    "scores": column_part("scores", "f64", [1.0, 1.0]),
                    "scored": bits_part("scored", b"\1\1"),
                }.values()
            )
        )


def test_an_id_of_another_content_is_refused() -> None:
    end = HEADER_OFFSET + PRELUDE.unpack_from(DATA)[2]
    header = fast_json.loads(DATA[HEADER_OFFSET:end])
    with pytest.raises(BadGroupError, match="the content does not match its id 'forged'"):
        decode(frame(fast_json.dumps({**header, "id": "forged"}), DATA[end + -end % 8 :]))


def test_a_part_of_a_later_version_does_not_stop_the_reading() -> None:
    assert decode(with_part(json_part("of_a_later_version", [1, 2]))) == GROUP


def test_a_changed_byte_in_a_part_of_a_later_version_is_found() -> None:
    data = bytearray(with_part(PartContent("of_a_later_version", "f16", 3, b"abcdef", b"abcdef")))
    data[-1] ^= 1
    with pytest.raises(BadGroupError, match="'of_a_later_version' has a wrong checksum"):
        decode(data)


def test_a_group_larger_than_the_limit_is_refused() -> None:
    with pytest.raises(BadGroupError, match="the limit is 100"):
        decode(DATA, limit=100)


def test_the_error_is_one_of_ours_and_a_value_error() -> None:
    assert issubclass(BadGroupError, HermesRLError)
    assert issubclass(BadGroupError, ValueError)


@UNHURRIED
@given(st.sampled_from(["group", "item", "rollouts", "conversations"]), VALUES)
def test_any_json_in_the_place_of_a_part_makes_a_group_or_is_refused(name: str, value: Any) -> None:
    assert is_group(with_part(json_part(name, value))) in {True, False}


@UNHURRIED
@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadGroupError):
        decode(data)


def test_no_change_of_bytes_does_anything_but_be_refused_or_read() -> None:
    """Half of the changes are made under right checksums and ids, so that they reach what lies behind those."""
    chance = random.Random(6)
    end = HEADER_OFFSET + PRELUDE.unpack_from(DATA)[2]
    header, body, contents = DATA[HEADER_OFFSET:end], DATA[end + -end % 8 :], contents_of(DATA)
    read = {"raw": 0, "header": 0, "part": 0}
    for _ in range(MUTATIONS // 4):
        read["raw"] += is_group(mutated(DATA, chance)) + is_group(mutated(DATA, chance))
        read["header"] += is_group(frame(mutated(header, chance), body))
        content = mutated_part(contents[chance.choice(list(contents))], chance)
        read["part"] += is_group(pack_parts({**contents, content.name: content}.values()))
    assert read["raw"] < MUTATIONS // 100 < read["part"] < MUTATIONS // 4


def mutated_part(content: PartContent, chance: random.Random) -> PartContent:
    if content.type == JSON:
        text = mutated(content.canonical, chance)
        try:
            return json_part(content.name, fast_json.loads(text))
        except ValueError:
            return content._replace(size=len(text), data=zstd.compress(text))
    data = mutated(content.data, chance)
    width = 1 if content.type == "bits" else struct.calcsize(STRUCT_CODES[content.type])
    data = data[: len(data) // width * width]
    size = min(content.size, len(data) * 8) if content.type == "bits" else len(data) // width
    return content._replace(size=size, data=data, canonical=data)


def mutated(data: bytes, chance: random.Random) -> bytes:
    place, other = sorted(chance.choices(range(len(data) + 1), k=2))
    match chance.randrange(5):
        case 0:
            return data[:place]
        case 1:
            return data[:place] + data[other:]
        case 2:
            return data[:place] + chance.randbytes(chance.randint(1, 8)) + data[place:]
        case 3:
            return data[:other] + data[place:other] + data[other:]
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        if changed:
            changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def test_importing_the_package_does_not_load_the_codec() -> None:
    code = "import sys; from hermes_rl import HermesAgentBaseEnv; print('hermes_rl.store.container' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_more_empty_sequences_than_any_group_has_are_refused() -> None:
    """Each is 4 bytes here, and a kilobyte of Python objects."""
    data = with_part(column_part("lengths", "u32", [0] * (MAX_SEQUENCES + 1)))
    with pytest.raises(BadGroupError, match="has 262145 sequences; the limit is 262144"):
        decode(data)
