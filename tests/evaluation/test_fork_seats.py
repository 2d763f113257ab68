"""Forks of episodes of several agents: all seats repeat the record up to the turn, then their models play."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hermes_rl import AgentResult, ConfigError, EpisodeContext, Group, HermesMultiAgentEnv, Reward, SeatAnswer
from hermes_rl.evaluation.fork import Fork, fork_rollout
from hermes_rl.rollout.generate import generate_groups
from hermes_rl.rollout.seats import FROZEN
from hermes_rl.store.records import read_groups
from tests.support.environments import opened
from tests.support.scripted_model import ScriptedModel, Text


class Sums(HermesMultiAgentEnv):
    """The seats say numbers in turn, four in all; a seat's score is the sum of its own."""

    seats: ClassVar[Sequence[str]] = ("odd", "even")

    def train_items(self) -> list[dict[str, int]]:
        return [{"goal": 5}]

    def initial_state(self, item: Any) -> dict[str, list[Any]]:
        return {"said": []}

    def seat_prompt(self, item: Any, seat: str) -> str:
        return f"You are {seat}."

    def next_seat(self, item: Any, state: Any, last: SeatAnswer | None) -> str | None:
        if last is not None:
            state["said"].append((last.seat, int(last.text)))
        return None if len(state["said"]) == 4 else super().next_seat(item, state, last)

    async def compute_seat_rewards(
        self, item: Any, results: Mapping[str, AgentResult], ctx: EpisodeContext
    ) -> Mapping[str, float | Reward]:
        said = ctx.state["said"]
        return {seat: float(sum(number for who, number in said if who == seat)) for seat in results}


def counts(request: dict[str, Any]) -> Text:
    heard = request["messages"][-1]["content"].split()[-1]
    return Text(str(int(heard) + 1 if heard.isdigit() else 1))


async def recorded(path: Path) -> list[Group]:
    async with ScriptedModel(counts) as model, opened(Sums, model, total_steps=1, group_size=2) as env:
        await generate_groups(env, path)
    return list(read_groups(path))


async def forked(
    groups: list[Group], fork: Fork, environment: type[HermesMultiAgentEnv] = Sums
) -> tuple[Group, list[Any]]:
    requests: list[Any] = []

    def hundred(request: dict[str, Any]) -> Text:
        requests.append(request)
        return Text("100")

    group = next(group for group in groups if group.rollouts[0].seat == "even")
    async with ScriptedModel(hundred) as model, opened(environment, model) as env:
        return await fork_rollout(env, group, fork, groups), requests


async def test_every_seat_repeats_the_record_up_to_the_turn_and_then_plays(tmp_path: Path) -> None:
    groups = await recorded(tmp_path / "groups.jsonl")
    made, requests = await forked(groups, Fork(rollout=1, turn=1, count=2))
    # Recorded were 1, 2, 3 and 4; odd's 1 stands, and the model says the other three.
    assert made.scores == [200.0, 200.0]
    assert len(requests) == 2 * 3
    assert len({request["seed"] for request in requests}) > 2, "forks are sampled with seeds of their own"
    first = made.rollouts[0]
    assert (first.seat, first.failure) == ("even", None)
    assert [message["content"] for message in first.messages] == ["You are even.\n\n1", "100", "100", "100"]
    assert first.metadata[FROZEN]["odd"]["score"] == 101.0
    assert first.metadata["fork"] == {"group": made_from(groups).id, "rollout": 1, "turn": 1}


def made_from(groups: list[Group]) -> Group:
    return next(group for group in groups if group.rollouts[0].seat == "even")


async def test_a_later_turn_keeps_more_of_the_record(tmp_path: Path) -> None:
    groups = await recorded(tmp_path / "groups.jsonl")
    made, requests = await forked(groups, Fork(rollout=0, turn=2))
    assert made.scores == [102.0]
    assert len(requests) == 1


async def test_a_difference_refuses_the_fork_before_a_model_is_asked(tmp_path: Path) -> None:
    class Other(Sums):
        def seat_prompt(self, item: Any, seat: str) -> str:
            return f"You are called {seat}."

    groups = await recorded(tmp_path / "groups.jsonl")
    made, requests = await forked(groups, Fork(0, 2), Other)
    failure = made.rollouts[0].failure
    assert str(failure) == "environment/replay" and not requests
    assert failure is not None
    assert "what odd is sent before its answer 1" in failure.message and "called odd" in failure.message


async def test_declared_noise_is_no_difference_between_episodes(tmp_path: Path) -> None:
    class Noisy(Sums):
        replay_noise = (r"called ",)

        def seat_prompt(self, item: Any, seat: str) -> str:
            return f"You are called {seat}."

    groups = await recorded(tmp_path / "groups.jsonl")
    made, _ = await forked(groups, Fork(0, 2), Noisy)
    assert made.scores == [102.0]


async def test_an_edit_and_a_missing_turn_are_refused(tmp_path: Path) -> None:
    groups = await recorded(tmp_path / "groups.jsonl")
    with pytest.raises(ConfigError, match="--edit"):
        await forked(groups, Fork(0, 2, edit="seven"))
    with pytest.raises(ConfigError, match="turns 1 to 2"):
        await forked(groups, Fork(0, 3))
    alone = replace(made_from(groups), rollouts=made_from(groups).rollouts)
    made, _ = await forked([alone], Fork(0, 2))
    failure = made.rollouts[0].failure
    assert failure is not None and "the record has no such answer" in failure.message, "odd's answers are missing"
