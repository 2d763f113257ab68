"""What happened turn by turn: states, step rewards, notes, seats; and the advantage of each rollout in its group."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hermes_rl.cli.run_access import viewed_runs
from hermes_rl.orchestration.run_state import Phase
from hermes_rl.store.database.store import open_store
from hermes_rl.store.records import write_document
from hermes_rl.training.checkpoints import Checkpoint, Lineage
from hermes_rl.viewer.responses.conversation import messages_page
from hermes_rl.viewer.responses.rollout import rollout_detail
from hermes_rl.viewer.sources.source import DEVIATION
from tests.store.database.making import add_groups, with_trainer
from tests.support.recorded_runs import make_run, run_file
from tests.viewer.recording import group, rollout, viewing, write_lines

GAME: list[Mapping[str, Any]] = [
    {"role": "user", "content": "guess"},
    {"role": "assistant", "content": "a", "tool_calls": [{"id": "1", "function": {"name": "guess"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "wrong"},
    {"role": "assistant", "content": "b"},
]
STATES = [
    {"turn": 0, "value": {"left": 3, "word": "b"}},
    {"turn": 1, "value": {"left": 2, "word": "b"}},
    {"turn": 2, "value": {"left": 2, "word": "b", "won": True}},
]


def game(**fields: Any) -> dict[str, Any]:
    steps = [{"turn": 1, "value": -0.1, "note": "wrong"}, {"turn": 2, "value": 1.0, "note": ""}]
    metadata = {"prompt_length": 1, "end_reason": "won", "step_rewards": steps}
    return rollout(0, 0.9, messages=GAME, turns_used=2, states=STATES, metadata=metadata, **fields)


def test_each_state_comes_after_the_last_message_of_its_turn_with_what_changed() -> None:
    rows = messages_page(game(), 0, 10)["rows"]
    assert [row["turn"] for row in rows] == [0, 1, 1, 2]
    assert [row["state"] and row["state"]["changed"] for row in rows] == [[], None, ["left"], ["won"]]
    assert rows[2]["state"]["text"] == '{"left":2,"word":"b"}'


def test_each_step_reward_comes_after_its_turn() -> None:
    rows = messages_page(game(), 0, 10)["rows"]
    assert [[reward["value"] for reward in row["rewards"]] for row in rows] == [[], [], [-0.1], [1.0]]


def test_states_of_a_compacted_conversation_stay_with_their_turns() -> None:
    rows = messages_page(game() | {"messages": [GAME[0], GAME[3]]}, 0, 10)["rows"]
    assert [row["turn"] for row in rows] == [0, 2]
    assert rows[1]["state"]["changed"] == ["won"]


@pytest.mark.parametrize("states", [None, 3, [None], [{"turn": "x"}], [[1]], [{"turn": 10**30, "value": 1}]])
def test_odd_states_are_no_error(states: Any) -> None:
    assert len(messages_page(game() | {"states": states}, 0, 10)["rows"]) == 4


def test_a_rollout_shows_its_notes_its_seat_and_why_it_ended(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "g.jsonl", group(0, game(notes={"judge": "too long"}, seat="buyer")))
    with viewing(path) as ask:
        name = ask.source()
        told = ask(f"/api/s/{name}/rollouts/1-0")
        assert ask(f"/api/s/{name}/rollouts")["rows"][0]["seat"] == "buyer"
    assert told["notes"] == [{"name": "judge", "text": "too long", "chars": 8}]
    assert (told["seat"], told["end_reason"], told["step_reward"]) == ("buyer", "won", pytest.approx(0.9))


@pytest.mark.parametrize(
    ("audit", "notes"),
    [
        (None, []),
        ({"score": 0.0, "notes": {"why": "copied"}}, [("audit", "score 0"), ("audit: why", "copied")]),
        ({"score": None, "error": "raised ValueError"}, [("audit", "raised ValueError")]),
    ],
)
def test_a_rollout_shows_what_its_audit_said(audit: Any, notes: list[tuple[str, str]]) -> None:
    told = rollout_detail({"messages": [], "audit": audit})
    assert [(note["name"], note["text"]) for note in told["notes"]] == notes


def test_the_advantage_is_relative_to_the_rollouts_that_count_in_the_baseline(tmp_path: Path) -> None:
    rows = [rollout(0, 1.0), rollout(1, 0.0), rollout(2, None), rollout(3, 1.0, withheld="no_tokens")]
    with viewing(write_lines(tmp_path / "g.jsonl", group(0, *rows))) as ask:
        told = ask(f"/api/s/{ask.source()}/groups/1")
        one = ask(f"/api/s/{ask.source()}/rollouts/1-1")
    assert told["advantages"] == {"1-0": 0.5, "1-1": -0.5}
    assert (one["advantage"], one["advantage_rule"]) == (-0.5, DEVIATION.text)


def test_each_seat_is_compared_with_itself(tmp_path: Path) -> None:
    scores = {"buyer": (0.0, 1.0), "seller": (5.0, 7.0)}
    rows = [rollout(0, score, seat=seat) for seat, both in scores.items() for score in both]
    with viewing(write_lines(tmp_path / "g.jsonl", group(0, *rows))) as ask:
        assert ask(f"/api/s/{ask.source()}/groups/1")["advantages"] == {
            "1-0": -0.5,
            "1-1": 0.5,
            "1-2": -1.0,
            "1-3": 1.0,
        }


def test_a_branch_is_compared_with_those_that_share_its_turns(tmp_path: Path) -> None:
    """The example of docs/decisions/0029-tree-groups.md: the last turns of a root, another root, and two branches."""
    at: dict[str, Any] = {"branch": {"rollout": 0, "turn": 2}}
    rows = [rollout(0, 1.0), rollout(1, 0.0), rollout(2, 0.0, **at), rollout(3, 0.5, **at)]
    with viewing(write_lines(tmp_path / "g.jsonl", group(0, *rows))) as ask:
        told = ask(f"/api/s/{ask.source()}/groups/1")["advantages"]
    assert told == {name: pytest.approx(value) for name, value in zip(told, [0.5, -0.25, -0.5, 0.0], strict=True)}


@pytest.mark.parametrize(
    ("tinker", "expected"),
    [
        ({}, [0.5, -0.5]),
        ({"advantage": "leave_one_out"}, [1.0, -1.0]),
        ({"advantage": "mean_std", "sample_std": False, "advantage_epsilon": 0.0}, [1.0, -1.0]),
        ({"advantage": "mine:rank"}, None),
        ({"per_turn": True}, None),
        ({"length_penalty": 0.1}, None),
    ],
)
def test_a_run_s_advantages_are_those_of_its_settings(
    tinker: Mapping[str, Any], expected: Sequence[float] | None
) -> None:
    make_run("ruled", file=run_file("ruled", tinker=tinker))
    rule = viewed_runs().advantage("ruled")
    found = None if rule.compute is None else rule.compute([1.0, 0.0])
    assert found is None if expected is None else np.allclose(found or [], expected)


def test_the_step_of_a_batch_comes_from_the_lineage() -> None:
    places = make_run("stepped")
    lineage = Lineage(places.folder / "lineage.jsonl")
    for step, batches in ((0, ()), (2, (4, 6)), (3, (9,))):
        lineage.add(Checkpoint(step, step, batches, f"state-{step}", f"sampler-{step}"))
    assert viewed_runs().batch_steps("stepped") == {4: 1, 6: 2, 9: 3}


async def test_the_groups_of_a_step_are_listed() -> None:
    places = make_run("listed")
    lineage = Lineage(places.folder / "lineage.jsonl")
    async with open_store(places.database) as store:
        environment = await with_trainer(store, batch_size=4)
        for step in (1, 2):
            await add_groups(store, environment, 1)
            batch = await store.lease("trainer", seconds=60)
            assert batch is not None
            lineage.add(Checkpoint(step, step, (batch.id,), f"state-{step}", f"sampler-{step}"))
            await store.ack(batch.id)

    def look() -> None:
        with viewing("listed", runs=viewed_runs()) as ask:
            [row] = ask("/api/s/run-listed/groups?step=2")["rows"]
            assert (row["id"], row["use"]) == ("2", {"state": "trained", "cause": None, "batch": 2, "step": 2})
            assert ask("/api/s/run-listed/groups?step=3")["rows"] == []
            assert ask("/api/s/run-listed/groups")["total"] == 2

    await asyncio.to_thread(look)


def test_the_next_commands_follow_the_state_of_a_run() -> None:
    make_run("going")
    assert "hermes-rl run stop going" in [command.line for command in viewed_runs().commands("going")]
    places = make_run("ended", phase=Phase.FINISHED)
    assert viewed_runs().commands("ended") == []
    Lineage(places.folder / "lineage.jsonl").add(Checkpoint(1, 1, (), "state", "sampler"))
    lines = [command.line for command in viewed_runs().commands("ended")]
    assert lines[:2] == ["hermes-rl evaluate words --run ended", "hermes-rl engine serve ended"]


def test_a_run_without_a_lineage_has_no_steps() -> None:
    places = make_run("unsaved")
    assert viewed_runs().batch_steps("unsaved") == {}
    write_document(places.folder / "lineage.jsonl", {"step": "odd"})
    assert viewed_runs().batch_steps("unsaved") == {}
