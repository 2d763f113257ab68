from typing import Any

import pytest

from hermes_rl.core import fast_json
from hermes_rl.core.trajectory import Sampling, Sequence, StopReason
from hermes_rl.store.codec import open_group
from hermes_rl.store.container import BadGroupError, PartContent, json_part, pack_parts
from hermes_rl.store.database.rows import TEXT_LIMIT, read_rows, read_texts, sanitize_text
from tests.store.database.making import make_failed, make_group, make_rollout


def test_a_row_tells_the_rollout() -> None:
    [row] = read_rows(make_group(1)).rollouts
    assert (row.score, row.stop_reason, row.turns, row.prompt_tokens, row.tokens) == (0.5, StopReason.NATURAL, 2, 3, 3)


def test_a_failed_rollout_is_told_by_whose_fault_and_cause() -> None:
    row = read_rows(make_group(rollouts=(make_rollout(), make_failed(1)))).rollouts[1]
    assert (row.score, row.failure, row.cause) == (None, "sandbox", "start")


def test_only_scored_rollouts_that_are_not_withheld_count() -> None:
    rollouts = (make_rollout(), make_rollout(1, withheld="too_long"), make_failed(2))
    assert read_rows(make_group(rollouts=rollouts)).size == 1


def test_the_oldest_version_is_of_the_rollouts_that_are_trained_on() -> None:
    rollouts = (
        make_failed(version=1),
        make_rollout(1, version=4),
        make_rollout(2, version=3),
        make_failed(3, version=2),
    )
    assert read_rows(make_group(rollouts=rollouts)).oldest_version == 3


def test_a_version_that_changes_within_a_sequence_counts_from_its_oldest_token() -> None:
    changing = Sequence((1, 2, 3), (1, 1, 1), (-1.0, -1.0, -1.0), (7, 8, 9), Sampling(1.0))
    rollouts = (make_failed(version=1), make_rollout(1, sequences=(changing,)))
    assert read_rows(make_group(rollouts=rollouts)).oldest_version == 7


@pytest.mark.parametrize(
    ("logprob", "version", "lacks"), [(None, 1, ("logprobs",)), (-1.0, None, ("versions",)), (-1.0, 1, ())]
)
def test_a_group_says_what_it_lacks(logprob: float | None, version: int | None, lacks: tuple[str, ...]) -> None:
    sequence = Sequence((1, 2), (0, 1), (None, logprob), (None, version), Sampling(1.0))
    assert read_rows(make_group(rollouts=(make_rollout(sequences=(sequence,)),))).lacks == lacks


def test_what_only_an_unscored_rollout_lacks_is_not_missed() -> None:
    assert read_rows(make_group(rollouts=(make_rollout(), make_failed(1, version=None)))).lacks == ()


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({}, None),
        ({"split": "eval"}, "not_training_data"),
        ({"withheld": "all_alike"}, "withheld"),
        ({"rollouts": (make_failed(),)}, "no_score"),
        ({"rollouts": (make_rollout(), make_rollout(1, sequences=()))}, "no_tokens"),
    ],
)
def test_a_group_that_no_trainer_may_have_says_why(fields: dict[str, Any], refusal: str | None) -> None:
    assert read_rows(make_group(**fields)).refusal == refusal


def test_a_group_without_an_id_goes_by_its_content() -> None:
    data = make_group(id="")
    assert read_rows(data).id == open_group(data).id


def test_a_long_conversation_is_found_by_its_beginning_and_its_end() -> None:
    [text] = read_texts(make_group(rollouts=(make_rollout(text="first " + "x" * 99_999 + " last"),)))
    assert text.startswith("first") and text.endswith("last") and len(text) <= TEXT_LIMIT + 3


def test_tool_calls_are_found_by_name_and_arguments() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "ls"}'}}
    [text] = read_texts(make_group(rollouts=(make_rollout(messages=[{"role": "assistant", "tool_calls": [call]}]),)))
    assert "terminal" in text and "ls" in text


def test_parts_of_a_message_are_found_by_their_text() -> None:
    content = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    [text] = read_texts(make_group(rollouts=(make_rollout(messages=[{"role": "user", "content": content}]),)))
    assert text == "look"


def test_text_that_no_database_takes_becomes_text_that_both_take() -> None:
    assert sanitize_text("a\0b\ud800c") == "a\ufffdb?c"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", "1"),
        ("turns_used", 2**63),
        ("item_id", None),
        ("stop_reason", "tired"),
        ("failure", {}),
        ("seconds", "x"),
    ],
)
def test_a_field_of_another_type_makes_no_group(name: str, value: Any) -> None:
    with pytest.raises(BadGroupError):
        read_rows(changed(make_group(1), "rollouts", name, value))


def changed(data: bytes, part: str, name: str, value: Any) -> bytes:
    """The group with one field of its first rollout replaced, and its checksums right."""
    view = open_group(data)
    contents = []
    for said in view.parts._parts.values():
        if said.name == part:
            first, *others = fast_json.loads(fast_json.dumps(view.parts.json(part)))
            contents.append(json_part(part, [{**first, name: value}, *others]))
        else:
            raw = bytes(view.parts._bytes(said))
            contents.append(PartContent(said.name, said.type, said.size, raw, raw))
    return pack_parts(contents)
