import resource
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError, Failure, FailureSource
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
from hermes_rl.store.records import (
    FORMAT,
    TAIL_BYTES,
    RecordWriter,
    group_from_record,
    group_to_record,
    read_groups,
    write_document,
)

# A busy machine is no failure.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

PROVENANCE = Provenance(environment="e", environment_hash="h", model="m", versions={"hermes-rl": "1"})
FAILURE = Failure(FailureSource.SANDBOX, "start", "bwrap is missing")
SEQUENCE = Sequence((7, 8, 9), (0, 1, 1), (None, -0.5, 0.0), (None, 3, 3), Sampling(1.0))


def scored(score: float, *sequences: Sequence, content: str = "done") -> Rollout:
    return Rollout(
        item_id="i",
        index=0,
        seed=1,
        messages=[{"role": "assistant", "content": content}],
        score=score,
        stop_reason=StopReason.NATURAL,
        sequences=sequences,
    )


def failed(*sequences: Sequence) -> Rollout:
    return Rollout(item_id="i", index=1, seed=2, messages=[], failure=FAILURE, sequences=sequences)


def group(*rollouts: Rollout, item: Any = None) -> Group:
    return Group(item_id="i", item=item, rollouts=rollouts, provenance=PROVENANCE)


def written(path: Path, *groups: Group) -> Path:
    with RecordWriter(path) as writer:
        for one in groups:
            writer.write(group_to_record(one))
    return path


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=3)
SAMPLINGS = st.builds(
    Sampling,
    temperature=NUMBERS,
    top_p=st.none() | NUMBERS,
    top_k=st.none() | st.integers(0, 100),
    logprobs=st.none() | st.sampled_from(["raw", "processed"]),
)


@st.composite
def sequences(draw: st.DrawFn) -> Sequence:
    size = draw(st.integers(0, 5))

    def column(values: st.SearchStrategy[Any]) -> tuple[Any, ...]:
        return tuple(draw(st.lists(values, min_size=size, max_size=size)))

    return Sequence(
        tokens=column(st.integers(0, 200_000)),
        mask=column(st.integers(0, 1)),
        logprobs=column(st.none() | NUMBERS),
        versions=column(st.none() | st.integers(0, 1000)),
        sampling=draw(SAMPLINGS),
        calls=tuple(
            SampledCall(draw(st.integers(0, 9)), begin)
            for begin in sorted(draw(st.sets(st.integers(0, size - 1), max_size=2)) if size else ())
        ),
    )


def tuples(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(values, max_size=2).map(tuple)


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    score = draw(st.none() | NUMBERS)
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
        components=draw(st.dictionaries(st.text(), NUMBERS, max_size=2)),
        turn_scores=draw(tuples(NUMBERS)),
        turns_used=draw(st.integers(0, 100)),
        tool_uses=draw(tuples(st.builds(ToolUse, st.integers(), st.text(), st.text(), st.text(), st.text()))),
        usage=draw(st.builds(Usage, st.none() | st.integers(0), st.none() | st.integers(0))),
        timings=draw(tuples(st.builds(Timing, st.sampled_from(Span), st.text(), NUMBERS, NUMBERS))),
        seconds=draw(NUMBERS),
        sequences=draw(tuples(sequences())),
        metadata=draw(OBJECTS),
    )


GROUPS = st.builds(
    Group,
    item_id=st.text(),
    item=JSON,
    rollouts=tuples(rollouts()),
    provenance=st.builds(
        Provenance,
        environment=st.text(),
        environment_hash=st.text(),
        model=st.text(),
        versions=st.dictionaries(st.text(), st.text(), max_size=2),
        dataset_hash=st.none() | st.text(),
        image_digest=st.none() | st.text(),
    ),
    tools=tuples(st.text()),
    split=st.sampled_from(["train", "eval"]),
    created_at=st.text(),
    overrides=OBJECTS,
)


@UNHURRIED
@given(GROUPS)
def test_a_group_comes_back_from_its_line_as_it_went(one: Group) -> None:
    line = fast_json.dumps(group_to_record(one))
    assert b"\n" not in line
    assert group_from_record(fast_json.loads(line)) == one


@UNHURRIED
@given(GROUPS)
def test_a_record_is_a_group_before_it_is_written_too(one: Group) -> None:
    assert group_from_record(group_to_record(one)) == one


def test_atropos_columns_hold_the_scored_rollouts_only() -> None:
    record = group_to_record(group(scored(0.5, content="a"), failed(), scored(1.0, content="b")))
    assert record["scores"] == [0.5, 1.0]
    assert [messages[-1]["content"] for messages in record["messages"]] == ["a", "b"]


def test_unscored_rollouts_are_in_the_record_with_their_failure() -> None:
    record = group_to_record(group(scored(0.5), failed()))
    assert record["rollouts"][1]["failure"] == {"whose": "sandbox", "cause": "start", "message": "bwrap is missing"}


def test_token_columns_are_those_of_the_one_sequence_of_each_scored_rollout() -> None:
    record = group_to_record(group(scored(0.5, SEQUENCE), failed(SEQUENCE, SEQUENCE), scored(1.0, SEQUENCE)))
    assert record["tokens"] == [[7, 8, 9], [7, 8, 9]]


@pytest.mark.parametrize(
    "others",
    [
        pytest.param((scored(1.0),), id="one without a sequence"),
        pytest.param((scored(1.0, SEQUENCE, SEQUENCE),), id="one with two"),
    ],
)
def test_token_columns_are_null_unless_each_scored_rollout_has_one_sequence(others: tuple[Rollout, ...]) -> None:
    record = group_to_record(group(scored(0.5, SEQUENCE), *others))
    assert [record[name] for name in ("tokens", "masks", "inference_logprobs")] == [None, None, None]


def test_token_columns_are_null_when_nothing_was_scored() -> None:
    record = group_to_record(group(failed(SEQUENCE)))
    assert (record["tokens"], record["scores"], record["messages"]) == (None, [], [])


def test_masks_hold_the_token_where_the_policy_sampled_it_and_minus_100_elsewhere() -> None:
    assert group_to_record(group(scored(0.5, SEQUENCE)))["masks"] == [[-100, 8, 9]]


def test_logprobs_hold_one_where_nothing_was_sampled_and_keep_a_zero() -> None:
    assert group_to_record(group(scored(0.5, SEQUENCE)))["inference_logprobs"] == [[1.0, -0.5, 0.0]]


def test_the_groups_of_a_file_come_in_the_order_they_were_written(tmp_path: Path) -> None:
    groups = [group(scored(float(number))) for number in range(3)]
    assert list(read_groups(written(tmp_path / "new" / "groups.jsonl", *groups))) == groups


def test_a_second_writer_appends(tmp_path: Path) -> None:
    path = written(tmp_path / "groups.jsonl", group(scored(0.0)))
    assert len(list(read_groups(written(path, group(scored(1.0)))))) == 2


def test_a_torn_last_line_ends_the_reading(tmp_path: Path) -> None:
    path = written(tmp_path / "groups.jsonl", group(scored(0.0)), group(scored(1.0)))
    path.write_bytes(path.read_bytes()[:-10])
    assert [one.scores for one in read_groups(path)] == [[0.0]]


@pytest.mark.parametrize("size", [10, TAIL_BYTES - 1, TAIL_BYTES, 3 * TAIL_BYTES])
def test_a_torn_last_line_does_not_swallow_the_next_record(tmp_path: Path, size: int) -> None:
    path = written(tmp_path / "groups.jsonl", group(scored(0.0)))
    path.write_bytes(path.read_bytes() + b"x" * size)
    assert [one.scores for one in read_groups(written(path, group(scored(1.0))))] == [[0.0], [1.0]]


def test_a_file_that_is_one_torn_line_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    path.write_bytes(b'{"format": "hermes')
    assert len(list(read_groups(written(path, group(scored(0.0)))))) == 1


FULL_DISK = """
import resource, sys
from pathlib import Path
from hermes_rl.store.records import RecordWriter

with RecordWriter(Path(sys.argv[1])) as writer:
    writer.write({"kept": 1})
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    try:
        writer.write({"whole": 1}, {"too long": "x" * 1000})
    except OSError as error:
        print(error.strerror)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    writer.write({"kept": 2})
"""


def test_records_the_disk_refused_half_way_leave_no_trace(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    path = tmp_path / "groups.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "File too large\n"
    assert path.read_text() == '{"kept":1}\n{"kept":2}\n'


def test_half_a_surrogate_pair_does_not_lose_the_record(tmp_path: Path) -> None:
    [one] = read_groups(written(tmp_path / "groups.jsonl", group(scored(0.5, content="a\ud83d"))))
    assert one.rollouts[0].messages[-1]["content"] == "a\ufffd"


def test_a_form_feed_or_line_separator_in_a_message_does_not_tear_the_line(tmp_path: Path) -> None:
    content = "a\x0c\x1c\u2028\r\n\x85b"
    [one] = read_groups(written(tmp_path / "groups.jsonl", group(scored(0.5, content=content))))
    assert one.rollouts[0].messages[-1]["content"] == content


class Answer:
    def __str__(self) -> str:
        return "42"


@pytest.mark.parametrize(
    ("item", "read"),
    [
        ((1, (2,)), [1, [2]]),
        ({"tags": {"a"}}, {"tags": ["a"]}),
        ({"answer": Answer()}, {"answer": "42"}),
        ({(1, 2): "cell"}, {"(1, 2)": "cell"}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        ({"n": 2**70}, {"n": 2**70}),
        (b"raw", "b'raw'"),
        (float("nan"), None),
    ],
)
def test_an_item_that_is_not_json_does_not_lose_the_record(tmp_path: Path, item: Any, read: Any) -> None:
    [one] = read_groups(written(tmp_path / "groups.jsonl", group(scored(0.5), item=item)))
    assert (one.item, one.scores) == (read, [0.5])


def test_states_notes_and_seat_are_kept(tmp_path: Path) -> None:
    states = (TurnState(0, {"board": []}), TurnState(2, {"board": ["x"]}))
    one = replace(scored(0.5), states=states, notes={"judge": "good"}, seat="buyer")
    [read] = read_groups(written(tmp_path / "groups.jsonl", group(one)))
    assert read.rollouts == (one,)


def test_a_record_of_version_2_has_none_of_them() -> None:
    record = {**group_to_record(group(scored(0.5))), "format": "hermes-rl/group/2"}
    for name in ("states", "notes", "seat"):
        del record["rollouts"][0][name]
    assert group_from_record(record).rollouts == (scored(0.5),)


def test_a_line_is_json_to_any_reader(tmp_path: Path) -> None:
    path = written(tmp_path / "groups.jsonl", group(scored(0.5, SEQUENCE), failed(), item={"q": 1}))
    assert orjson.loads(path.read_bytes())["format"] == FORMAT


@pytest.mark.parametrize("found", [None, "hermes-rl/group/1", "atropos"])
def test_a_record_of_another_format_is_refused_with_both_names(found: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        group_from_record({**group_to_record(group(scored(0.5))), "format": found})
    assert repr(found) in str(caught.value)
    assert FORMAT in str(caught.value)


@pytest.mark.parametrize("line", ["{}", "[]", "not json", "", f'{{"format": "{FORMAT}"}}'])
def test_a_line_that_is_no_group_is_refused_with_its_file_and_number(tmp_path: Path, line: str) -> None:
    path = written(tmp_path / "groups.jsonl", group(scored(0.5)))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ConfigError, match=r"groups\.jsonl, line 2 is not a group"):
        list(read_groups(path))


def test_two_who_write_a_document_at_once_leave_one_of_the_two_whole(tmp_path: Path) -> None:
    path = tmp_path / "state.json"

    def write(who: int) -> None:
        for number in range(200):
            write_document(path, {"who": who, "number": number, "filling": "x" * who * 5000})

    writers = [threading.Thread(target=write, args=(who,)) for who in (1, 2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if path.exists():
            said = fast_json.loads(path.read_bytes())
            assert len(said["filling"]) == said["who"] * 5000
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


def test_a_document_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "state.json").mkdir()
    with pytest.raises(OSError, match="state"):
        write_document(tmp_path / "state.json", {})
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]
