"""What a list says of a group: a title that names the task, whatever was said before and after it."""

import json
from dataclasses import replace
from typing import Any

import pytest

from hermes_rl.core.trajectory import SampledCall, TurnState
from hermes_rl.store.codec import open_group
from hermes_rl.viewer.sources import jsonl, trajectory_db
from hermes_rl.viewer.sources.jsonl import Line
from hermes_rl.viewer.summaries import GroupEntry, item_title
from tests.store.database.making import make_group, make_rollout, make_sequence
from tests.viewer.recording import group, rollout

WORKED_EXAMPLE = [
    {"role": "system", "content": "You have a terminal."},
    {"role": "user", "content": "make the file example.txt"},
    {"role": "assistant", "content": "touch example.txt"},
    {"role": "user", "content": "make the file task.txt"},
]
CONVERSATION = [
    *WORKED_EXAMPLE,
    {"role": "assistant", "content": "touch task.txt"},
    {"role": "user", "content": "are you sure?"},
]
SAID = {"prompt_length": len(WORKED_EXAMPLE)}
ITEM = {"word": "task"}


def title(messages: list[Any], **metadata: Any) -> str:
    return item_title(ITEM, {"messages": messages, "metadata": metadata})


def test_a_title_is_the_task_and_not_the_example_before_it() -> None:
    assert title(CONVERSATION, **SAID) == "make the file task.txt"


def test_a_title_is_the_task_in_a_line_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    record = group(0, rollout(0, messages=CONVERSATION, metadata=SAID), item=ITEM)
    raw = json.dumps(record).encode() + b"\n"
    for large in (jsonl.LARGE_LINE, 10):
        monkeypatch.setattr(jsonl, "LARGE_LINE", large)
        entry = jsonl.index_entry(Line(1, 0, len(raw), raw))
        assert isinstance(entry, GroupEntry)
        assert entry.title == "make the file task.txt"


def test_a_title_is_the_task_in_a_store() -> None:
    entry = trajectory_db.index_entry(1, make_group(rollouts=(make_rollout(0, messages=CONVERSATION, metadata=SAID),)))
    assert isinstance(entry, GroupEntry)
    assert entry.title == "make the file task.txt"


def test_the_record_of_a_stored_rollout_has_the_calls_of_each_sequence() -> None:
    called = replace(make_sequence(), calls=(SampledCall(1, 1),))
    view = open_group(
        make_group(rollouts=(make_rollout(), replace(make_rollout(), sequences=(make_sequence(), called))))
    )
    assert [one.get("calls") for one in trajectory_db.sequence_records(view, 1)] == [None, [[1, 1]]]
    assert [one.get("calls") for one in trajectory_db.sequence_records(view, 0)] == [None]
    assert "calls" not in trajectory_db.rollout_record(view, 1)


def test_the_record_of_a_stored_rollout_has_states_notes_and_seat() -> None:
    states = (TurnState(0, {"left": 3}), TurnState(1, {"left": 2}))
    played = make_rollout(states=states, notes={"judge": "too long"}, seat="buyer")
    data = make_group(rollouts=(make_rollout(), played))
    record = trajectory_db.rollout_record(open_group(data), 1)
    assert (record["notes"], record["seat"]) == ({"judge": "too long"}, "buyer")
    assert [state["value"] for state in record["states"]] == [{"left": 3}, {"left": 2}]
    entry = trajectory_db.index_entry(1, data)
    assert isinstance(entry, GroupEntry)
    assert [one.seat for one in entry.rollouts] == [None, "buyer"]


@pytest.mark.parametrize("length", [None, 0, -1, "four", 10**30])
def test_where_the_prompt_has_no_length_it_ends_before_the_first_answer(length: Any) -> None:
    assert title(CONVERSATION, prompt_length=length) == "make the file example.txt"


def test_what_was_said_later_is_the_title_where_the_prompt_has_nothing_of_a_user() -> None:
    messages = [{"role": "system", "content": "play"}, {"role": "assistant", "content": "hello"}]
    assert title([*messages, {"role": "user", "content": "my move"}], prompt_length=1) == "my move"


def test_what_the_item_calls_its_task_comes_first() -> None:
    assert item_title({"question": "why?"}, {"messages": CONVERSATION, "metadata": SAID}) == "why?"


def test_an_item_that_nobody_spoke_of_is_shown_itself() -> None:
    assert title([]) == '{"word":"task"}'
