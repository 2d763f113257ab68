import json
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.api.atropos.batch_json import FIELDS, scored_data_json
from hermes_rl.api.atropos.scored_data import ORIGIN, read_scored_data, read_scored_data_list
from hermes_rl.http.errors import RefusedError
from hermes_rl.store.codec import decode, encode
from hermes_rl.store.container import BadGroupError
from hermes_rl.store.database.rows import read_rows
from tests.api.atropos.making import make_scored_data
from tests.store.database.making import make_failed, make_group, make_rollout, make_sequence

FINITE = st.floats(allow_nan=False, allow_infinity=False)
LOGPROBS = st.floats(-50, 1, width=32)
TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
OBJECT = st.dictionaries(TEXT, ANYTHING, max_size=3)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"])}, optional={"content": TEXT | st.none()}
)


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """ScoredData with any of its fields."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))

    def rows(values: st.SearchStrategy[Any]) -> list[list[Any]]:
        return [draw(st.lists(values, min_size=length, max_size=length)) for length in lengths]

    def each(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=len(lengths), max_size=len(lengths)))

    tokens = rows(st.integers(-(2**63), 2**63 - 1))
    body: dict[str, Any] = {
        "tokens": tokens,
        "masks": [[draw(st.sampled_from([-100, token, token, 1])) for token in row] for row in tokens],
        "scores": each(FINITE),
    }
    optional: dict[str, Callable[[], Any]] = {
        "advantages": lambda: rows(FINITE),
        "ref_logprobs": lambda: rows(FINITE),
        "messages": lambda: each(st.lists(MESSAGE, max_size=3)),
        "generation_params": lambda: draw(OBJECT),
        "inference_logprobs": lambda: rows(LOGPROBS),
        "overrides": lambda: each(OBJECT),
        "group_overrides": lambda: draw(OBJECT),
        "images": lambda: draw(ANYTHING),
        "env_id": lambda: draw(st.integers(0, 2**40)),
        "distill_token_ids": lambda: [[[1, 2]] * length for length in lengths],
        "distill_logprobs": lambda: [[[-0.5, -0.25]] * length for length in lengths],
        "of_tomorrow": lambda: draw(ANYTHING),
    }
    for name, make in optional.items():
        what = draw(st.sampled_from(["nothing", "null", "empty", "something"]))
        if what == "null":
            body[name] = None
        elif what == "something":
            body[name] = make()
        elif what == "empty" and name not in {"generation_params", "group_overrides", "env_id"}:
            body[name] = []
    return body


def returned(body: dict[str, Any]) -> dict[str, Any]:
    _, data = read_scored_data(json.dumps(body).encode())
    read_rows(data)
    answer: dict[str, Any] = json.loads(b"".join(scored_data_json(data, 1)))
    return answer


def refusal(body: Any) -> RefusedError:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(RefusedError) as refused:
        read_scored_data(text)
    return refused.value


@given(bodies())
def test_what_was_posted_comes_back(body: dict[str, Any]) -> None:
    said = {name: value for name, value in body.items() if value is not None}
    assert returned(body) == dict.fromkeys(FIELDS) | said


def test_logprobs_are_rounded_to_float32() -> None:
    body = make_scored_data(1, 3)
    body["inference_logprobs"] = [[1.0, -0.1, -0.2]]
    rounded = list(struct.unpack("<3f", struct.pack("<3f", 1.0, -0.1, -0.2)))
    assert returned(body)["inference_logprobs"] == [rounded]


def test_a_group_has_columns_of_our_own() -> None:
    body = {"tokens": [[5, 6, 7]], "masks": [[-100, 6, 7]], "scores": [1], "inference_logprobs": [[1.0, -0.5, -0.25]]}
    [rollout] = decode(read_scored_data(json.dumps(body).encode())[1]).rollouts
    [sequence] = rollout.sequences
    assert (rollout.score, sequence.mask, sequence.logprobs) == (1.0, (0, 1, 1), (None, -0.5, -0.25))


def test_the_temperature_is_that_of_the_generation_params() -> None:
    body = make_scored_data(1, generation_params={"temperature": 0.5, "top_p": 0.9, "top_k": 40})
    sampling = decode(read_scored_data(json.dumps(body).encode())[1]).rollouts[0].sequences[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 40)


def test_the_same_content_has_the_same_id() -> None:
    body = make_scored_data(env_id=1)
    again = dict(reversed(body.items()))
    first, second = (read_rows(read_scored_data(json.dumps(one).encode())[1]).id for one in (body, again))
    assert first == second


def test_the_same_content_of_another_environment_has_another_id() -> None:
    body = make_scored_data(env_id=1)
    first, second = (read_rows(read_scored_data(json.dumps(body | {"env_id": one}).encode())[1]).id for one in (1, 2))
    assert first != second


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("tokens", lambda body: body.pop("tokens")),
        ("tokens", lambda body: body.update(tokens=[])),
        ("tokens", lambda body: body.update(tokens=5)),
        ("tokens[3]", lambda body: body["tokens"].__setitem__(3, [])),
        ("tokens[1][2]", lambda body: body["tokens"][1].__setitem__(2, 1.5)),
        ("tokens[1][2]", lambda body: body["tokens"][1].__setitem__(2, 2**63)),
        ("tokens[1][2]", lambda body: body["tokens"][1].__setitem__(2, True)),
        ("masks", lambda body: body["masks"].pop()),
        ("masks[2]", lambda body: body["masks"][2].pop()),
        ("masks[0][1]", lambda body: body["masks"][0].__setitem__(1, None)),
        ("scores", lambda body: body["scores"].pop()),
        ("scores", lambda body: body["scores"].__setitem__(0, float("nan"))),
        ("scores", lambda body: body["scores"].__setitem__(0, float("inf"))),
        ("scores[0]", lambda body: body["scores"].__setitem__(0, "1")),
        ("inference_logprobs", lambda body: body["inference_logprobs"].pop()),
        ("inference_logprobs", lambda body: body.update(inference_logprobs=5)),
        ("inference_logprobs[0]", lambda body: body["inference_logprobs"][0].append(-1.0)),
        ("inference_logprobs[1]", lambda body: body["inference_logprobs"][1].__setitem__(0, float("nan"))),
        ("inference_logprobs[1]", lambda body: body["inference_logprobs"][1].__setitem__(0, 1e300)),
        ("inference_logprobs[1][0]", lambda body: body["inference_logprobs"][1].__setitem__(0, "x")),
        ("advantages", lambda body: body.update(advantages=[[0.5] * 6])),
        ("ref_logprobs[0]", lambda body: body.update(ref_logprobs=[[0.5]] * 4)),
        ("messages", lambda body: body.update(messages=[[{"role": "user"}]])),
        ("messages[0][0]", lambda body: body.update(messages=[[{"content": "x"}]] * 4)),
        ("messages[0][0]", lambda body: body.update(messages=[["x"]] * 4)),
        ("overrides", lambda body: body.update(overrides=[{}])),
        ("group_overrides", lambda body: body.update(group_overrides=[1])),
        ("generation_params", lambda body: body.update(generation_params="hot")),
        ("images", lambda body: body.update(images=float("nan"))),
        ("env_id", lambda body: body.update(env_id="1")),
        ("env_id", lambda body: body.update(env_id=1.5)),
        ("distill_logprobs", lambda body: body.update(distill_logprobs=[[[0.5]]])),
    ],
)
def test_a_bad_field_is_named(field: str, change: Callable[[dict[str, Any]], Any]) -> None:
    body = make_scored_data()
    change(body)
    error = refusal(body)
    assert (error.status, error.field) == (422, field)


def test_a_bad_field_in_a_list_is_named_with_its_group() -> None:
    body = make_scored_data()
    body["scores"].pop()
    with pytest.raises(RefusedError) as refused:
        read_scored_data_list(json.dumps([make_scored_data(), body]).encode())
    assert refused.value.field == "[1].scores"


@pytest.mark.parametrize("text", [b"", b"null", b"[]", b"{", b'{"tokens": [[1]', b"\xff", b'{"\xff": 1}'])
def test_what_is_no_object_is_refused(text: bytes) -> None:
    assert refusal(text).status == 422


def test_text_that_is_not_utf_8_is_refused() -> None:
    text = json.dumps(make_scored_data(images="@")).encode().replace(b"@", b"\xff")
    assert refusal(text).field == "images"


@pytest.mark.parametrize("name", ["tokens", "scores", "messages", "env_id", "images"])
def test_no_depth_of_nesting_is_a_failure(name: str) -> None:
    deep = b"[" * 1000 + b"]" * 1000
    text = json.dumps(make_scored_data(1) | {name: "@"}).encode().replace(b'"@"', b"[" + deep + b"]")
    with suppress(RefusedError, BadGroupError):
        read_scored_data(text)


def test_long_whole_numbers_in_messages_stay_as_they_are() -> None:
    messages = [[{"role": "user", "content": None, "reward": 10**30}]]
    assert returned(make_scored_data(1, messages=messages))["messages"] == messages


def test_true_and_false_are_scores() -> None:
    assert returned(make_scored_data(2, scores=[True, False]))["scores"] == [1.0, 0.0]


def test_a_group_of_ours_goes_out_without_the_rollouts_that_are_not_trained_on() -> None:
    rollouts = (make_failed(0), make_rollout(1, score=1.0), make_rollout(2, withheld="no"), make_rollout(3, score=2.0))
    sent = json.loads(b"".join(scored_data_json(make_group(rollouts=rollouts), 7)))
    assert (sent["scores"], len(sent["tokens"]), sent["env_id"]) == ([1.0, 2.0], 2, 7)


def test_a_group_of_ours_has_atropos_marks_where_nothing_was_sampled() -> None:
    sent = json.loads(b"".join(scored_data_json(make_group(1), 1)))
    assert (sent["masks"], sent["inference_logprobs"]) == ([[-100, 6, 7]], [[1.0, -0.5, -0.5]])


def test_a_group_that_only_says_it_came_from_atropos_goes_out_as_one_of_ours() -> None:
    group = decode(make_group(1))
    for item in (None, {}, {"atropos": 1}, {"atropos": {"images": 1}}):
        sent = json.loads(b"".join(scored_data_json(encode(replace(group, provenance=ORIGIN, item=item)), 7)))
        assert (sent["env_id"], sent["images"]) == (7, None)


def test_a_group_of_ours_without_logprobs_sends_none() -> None:
    rollout = make_rollout(sequences=(make_sequence(logprob=None),))
    assert json.loads(b"".join(scored_data_json(make_group(rollouts=(rollout,)), 1)))["inference_logprobs"] is None
