"""Several agents in one episode: the order of turns, the tokens and scores of each seat, and what leaves no score."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from examples.negotiation_env import NegotiationEnv
from examples.tic_tac_toe_env import TicTacToeEnv
from hermes_rl import (
    AgentResult,
    APIServerConfig,
    ConfigError,
    EpisodeContext,
    Group,
    HermesMultiAgentEnv,
    Reward,
    Rollout,
    SeatAnswer,
    StopReason,
    ToolSession,
    tool,
)
from hermes_rl.core.trajectory import Sampling
from hermes_rl.core.trajectory import Sequence as TokenSequence
from hermes_rl.environment.scripted_policy import Step
from hermes_rl.evaluation.metrics import EvaluationCounts
from hermes_rl.evaluation.replay_seats import episodes
from hermes_rl.evaluation.rescore import RescoreSource, RescoreStats, rescore_groups
from hermes_rl.inference import outage
from hermes_rl.inference.outage import OutageError
from hermes_rl.rollout.generate import generate_groups
from hermes_rl.rollout.group import run_group
from hermes_rl.store.codec import decode, encode
from hermes_rl.store.records import group_from_record, group_to_record, read_groups
from hermes_rl.tools.faults import BrokenToolError
from hermes_rl.training.batch import training_batch
from hermes_rl.training.config import TrainerSettings
from hermes_rl.validation.item_checks import take_inventory
from hermes_rl.validation.report import ScriptedRollout, ValidationFinding
from hermes_rl.validation.scores import score_findings
from hermes_rl.validation.seat_checks import run_seat_agents
from tests.support.chat_models import chat_model
from tests.support.environments import opened
from tests.support.scripted_model import Calls, ScriptedModel, Status, Text
from tests.support.token_servers import Asked, Tokens, VLLMServer

ITEM = {"goal": 5}


@dataclass
class Count:
    """The numbers said, in order."""

    said: list[tuple[str, int]] = field(default_factory=list)


class Counting(HermesMultiAgentEnv):
    """The seats say a number in turn; the episode ends after four numbers. A seat's score is the sum of its numbers."""

    seats: ClassVar[Sequence[str]] = ("odd", "even")

    def train_items(self) -> list[dict[str, int]]:
        return [ITEM]

    def initial_state(self, item: Any) -> Count:
        return Count()

    def seat_prompt(self, item: Any, seat: str) -> str:
        return f"You are {seat}."

    def next_seat(self, item: Any, state: Count, last: SeatAnswer | None) -> str | None:
        if last is not None:
            state.said.append((last.seat, int(last.text)))
        return None if len(state.said) == 4 else super().next_seat(item, state, last)

    async def compute_seat_rewards(
        self, item: Any, results: Mapping[str, AgentResult], ctx: EpisodeContext
    ) -> Mapping[str, float | Reward]:
        return {seat: float(sum(number for who, number in ctx.state.said if who == seat)) for seat in results}


def counts(request: dict[str, Any]) -> Text:
    """One more than the number heard last; the first says 1."""
    heard = request["messages"][-1]["content"].split()[-1]
    return Text(str(int(heard) + 1 if heard.isdigit() else 1))


async def groups_of(environment: type[HermesMultiAgentEnv], script: Any = counts, **config: Any) -> list[Group]:
    async with ScriptedModel(script) as model, opened(environment, model, **{"group_size": 2, **config}) as env:
        return await env.collect_groups(ITEM)


def causes(groups: Sequence[Group]) -> set[str]:
    return {str(rollout.failure) for group in groups for rollout in group.rollouts}


def said(rollout: Rollout) -> list[str]:
    return [f"{message['role']}: {message['content']}" for message in rollout.messages]


async def test_the_seats_take_turns_and_each_hears_the_other() -> None:
    odd, even = await groups_of(Counting)
    assert said(odd.rollouts[0]) == ["user: You are odd.", "assistant: 1", "user: 2", "assistant: 3"]
    assert said(even.rollouts[0]) == ["user: You are even.\n\n1", "assistant: 2", "user: 3", "assistant: 4"]


async def test_each_seat_is_a_group_with_its_own_scores() -> None:
    groups = await groups_of(Counting)
    assert [[rollout.seat for rollout in group.rollouts] for group in groups] == [["odd"] * 2, ["even"] * 2]
    assert [group.scores for group in groups] == [[4.0, 4.0], [6.0, 6.0]]
    assert len({group.id for group in groups}) == 2
    assert len({group.draw for group in groups}) == 1


async def test_rollouts_of_one_episode_name_it() -> None:
    odd, even = await groups_of(Counting)
    names = [[rollout.metadata["episode"] for rollout in group.rollouts] for group in (odd, even)]
    assert names[0] == names[1]
    assert len(set(names[0])) == 2


async def test_the_seats_have_seeds_of_their_own() -> None:
    seeds = []

    def noting(request: dict[str, Any]) -> Text:
        seeds.append(request["seed"])
        return counts(request)

    await groups_of(Counting, noting, group_size=1)
    assert len(set(seeds)) == 4


async def test_an_episode_ends_for_all_when_a_seat_stops() -> None:
    def cut(request: dict[str, Any]) -> Text:
        answer = counts(request)
        return Text("2", finish_reason="length") if answer.content == "2" else answer

    odd, even = await groups_of(Counting, cut, group_size=1)
    assert odd.rollouts[0].stop_reason is StopReason.ENDED
    assert odd.rollouts[0].metadata["end_reason"] == "even stopped: length"
    assert even.rollouts[0].stop_reason is StopReason.LENGTH
    # What was cut off is no answer.
    assert (odd.scores, even.scores) == ([1.0], [0.0])


async def test_a_seat_without_a_turn_has_no_rollout() -> None:
    class Alone(Counting):
        def next_seat(self, item: Any, state: Count, last: SeatAnswer | None) -> str | None:
            return "even" if last is None else None

    groups = await groups_of(Alone)
    assert [[rollout.seat for rollout in group.rollouts] for group in groups] == [["even", "even"]]


async def test_three_seats_hear_who_said_what() -> None:
    class Three(Counting):
        seats = ("a", "b", "c")

    *_, last = await groups_of(Three, lambda request: Text(str(len(request["messages"]))), group_size=1)
    assert said(last.rollouts[0])[0] == "user: You are c.\n\na: 1\n\nb: 1"


async def test_the_state_is_recorded_as_each_answer_left_it() -> None:
    odd, _ = await groups_of(Counting, group_size=1)
    states = [(state.turn, len(state.value["said"])) for state in odd.rollouts[0].states]
    # After each own answer, and after each of the other.
    assert states == [(0, 0), (1, 1), (1, 2), (2, 3), (2, 4)]


# --- tools ---


class Taking(Counting):
    """A seat takes a number with a tool; the referee has none."""

    seats = ("player", "referee")

    @tool
    async def take(self, session: ToolSession, number: int) -> str:
        """Take a number.

        Args:
            number: the number to take
        """
        session.state.said.append((session.seat, number))
        return "taken"

    @tool
    async def close(self, session: ToolSession) -> str:
        """End the game."""
        session.end("closed")
        return "closed"

    def seat_tools(self, seat: str) -> list[str] | None:
        return [] if seat == "referee" else None

    def next_seat(self, item: Any, state: Count, last: SeatAnswer | None) -> str | None:
        return HermesMultiAgentEnv.next_seat(self, item, state, last)


async def test_a_tool_knows_its_seat_and_shares_the_state() -> None:
    offered = []

    def takes(request: dict[str, Any]) -> Any:
        offered.append([each["function"]["name"] for each in request.get("tools", [])])
        last = request["messages"][-1]
        if last["role"] == "tool":
            return Text("your turn") if last["content"] == "taken" else Text("over")
        if last["content"].startswith("You are player"):
            return Calls([("take", '{"number": 7}')])
        return Text("go on") if "referee" in request["messages"][0]["content"] else Calls([("close", "{}")])

    player, referee = await groups_of(Taking, takes, group_size=1)
    assert offered[0] == ["take", "close"]
    assert [] in offered
    assert (player.tools, referee.tools) == (("close", "take"), ())
    assert (player.scores, referee.scores) == ([7.0], [0.0])
    assert player.rollouts[0].metadata["end_reason"] == referee.rollouts[0].metadata["end_reason"] == "closed"


async def test_a_seat_with_an_unknown_tool_is_refused() -> None:
    class Misspelt(Taking):
        def seat_tools(self, seat: str) -> list[str] | None:
            return ["tkae"]

    with pytest.raises(ConfigError, match=r"seat_tools\('player'\) names 'tkae'"):
        await groups_of(Misspelt)


# --- failures ---


@pytest.mark.parametrize("hook", ["next_seat", "observation"])
async def test_a_broken_seat_is_the_environments_failure_for_all(hook: str) -> None:
    def broken(self: Any, *arguments: Any) -> Any:
        state = arguments[1] if hook == "next_seat" else arguments[2]
        if len(state.said) == 2:
            raise KeyError("no such board")
        return getattr(Counting, hook)(self, *arguments)

    groups = await groups_of(type("Broken", (Counting,), {hook: broken}))
    assert [group.scores for group in groups] == [[], []]
    assert causes(groups) == {"environment/seat"}
    message = groups[0].rollouts[0].failure
    assert message is not None
    assert "test_seats.py:" in message.message


async def test_a_prompt_that_raises_gives_no_seat_a_score() -> None:
    class NoPrompt(Counting):
        def seat_prompt(self, item: Any, seat: str) -> str:
            return {"odd": "You are odd."}[seat]

    groups = await groups_of(NoPrompt)
    assert ([group.scores for group in groups], causes(groups)) == ([[], []], {"environment/prompt"})


async def test_a_reward_that_always_raises_gives_no_seat_a_score() -> None:
    class NoReward(Counting):
        async def compute_seat_rewards(self, item: Any, results: Any, ctx: EpisodeContext) -> dict[str, float]:
            raise ZeroDivisionError

    groups = await groups_of(NoReward)
    assert ([group.scores for group in groups], causes(groups)) == ([[], []], {"verifier/raised"})


async def test_a_missing_reward_gives_no_seat_a_score() -> None:
    class Half(Counting):
        async def compute_seat_rewards(self, item: Any, results: Any, ctx: EpisodeContext) -> dict[str, float]:
            return {"odd": 1.0}

    groups = await groups_of(Half)
    assert ([group.scores for group in groups], causes(groups)) == ([[], []], {"verifier/seat_rewards"})


async def test_a_dead_endpoint_of_one_seat_gives_no_seat_a_score() -> None:
    def dead_for_even(request: dict[str, Any]) -> Any:
        return Status(503) if "even" in request["messages"][0]["content"] else counts(request)

    groups = await groups_of(Counting, dead_for_even, rollout_retries=0)
    assert [group.scores for group in groups] == [[], []]
    assert causes(groups) == {"endpoint/http_503"}


async def test_a_lost_model_server_ends_the_run_with_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "ASK_EVERY", 0.02)
    async with AsyncExitStack() as serving, AsyncExitStack() as opened_env:
        model = await serving.enter_async_context(ScriptedModel(counts))
        endpoint = APIServerConfig(
            base_url=model.base_url, model_name="scripted", max_retries=0, timeout=20, outage_limit=0.05
        )
        env = Counting(Counting.env_config_cls(group_size=2, rollout_retries=0), [endpoint])
        await opened_env.enter_async_context(env.opened())
        await serving.aclose()
        with pytest.raises(OutageError, match="--resume"):
            await env.collect_groups(ITEM)


async def test_a_failed_episode_is_retried_as_a_whole() -> None:
    failures = iter([True])

    def fails_once(request: dict[str, Any]) -> Any:
        return Status(503) if request["messages"][-1]["content"] == "2" and next(failures, False) else counts(request)

    odd, even = await groups_of(Counting, fails_once, group_size=1)
    assert (odd.scores, even.scores) == ([4.0], [6.0])
    assert odd.rollouts[0].metadata["earlier_failures"] == ["endpoint/http_503"]


async def test_broken_turns_stop_the_run(tmp_path: Path) -> None:
    class Broken(Counting):
        def next_seat(self, item: Any, state: Count, last: SeatAnswer | None) -> str | None:
            raise KeyError("no such board")

    async with ScriptedModel(counts) as model, opened(Broken, model, total_steps=3, group_size=1) as env:
        with pytest.raises(BrokenToolError, match="no such board"):
            await generate_groups(env, tmp_path / "groups.jsonl")


async def test_a_reward_that_the_answers_break_is_charged() -> None:
    class Fragile(Counting):
        async def compute_seat_rewards(self, item: Any, results: Any, ctx: EpisodeContext) -> dict[str, float]:
            return {seat: 1.0 / (4 - len(ctx.state.said)) for seat in results}

    groups = await groups_of(Fragile, failing_score=-1.0)
    assert [group.scores for group in groups] == [[-1.0, -1.0], [-1.0, -1.0]]
    assert "verifier/raised" in groups[0].rollouts[0].metadata["charged"]


# --- frozen seats ---


async def test_a_frozen_seat_plays_on_its_endpoint_and_is_in_no_group() -> None:
    async with ScriptedModel(lambda _: Text("10")) as other:
        endpoint = {"base_url": other.base_url, "model_name": other.model_name}
        groups = await groups_of(Counting, seat_endpoints={"even": endpoint})
        assert other.requests == 4
    [odd] = groups
    assert {rollout.seat for rollout in odd.rollouts} == {"odd"}
    assert said(odd.rollouts[0])[2:] == ["user: 10", "assistant: 11"]
    frozen = odd.rollouts[0].metadata["frozen_seats"]["even"]
    assert (frozen["score"], frozen["sequences"]) == (20.0, [])


async def test_a_dead_frozen_endpoint_gives_no_score() -> None:
    async with ScriptedModel(lambda _: Status(503)) as other:
        endpoint = {"base_url": other.base_url, "model_name": other.model_name, "max_retries": 0}
        groups = await groups_of(Counting, seat_endpoints={"even": endpoint}, rollout_retries=0)
    assert ([group.scores for group in groups], causes(groups)) == ([[]], {"endpoint/http_503"})


# --- refusals ---


@pytest.mark.parametrize(
    ("methods", "config", "message"),
    [
        ({"seats": ()}, {}, "name each agent once"),
        ({"seats": ("a", "a")}, {}, "name each agent once"),
        ({"oracle": lambda self, item: ["done"]}, {}, "an environment with seats uses seat_oracle"),
        ({}, {"seat_endpoints": {"odds": {"base_url": "http://x/v1"}}}, "seat_endpoints names 'odds'"),
        ({}, {"agent_command": "agent:opencode"}, "unset agent_command"),
    ],
)
def test_what_cannot_work_is_refused(methods: dict[str, Any], config: dict[str, Any], message: str) -> None:
    environment: type[Counting] = type("Refused", (Counting,), methods)
    endpoint = APIServerConfig(base_url="http://127.0.0.1:1/v1", model_name="none")
    with pytest.raises(ConfigError, match=message):
        environment(environment.env_config_cls(**config), [endpoint])


# --- tokens and training ---

MODEL = chat_model("chatml")


def ids(text: str) -> tuple[int, ...]:
    return (*MODEL.tokenizer.encode(text, add_special_tokens=False), MODEL.stop_ids[0])


def counts_in_tokens(asked: Asked) -> Tokens:
    text = MODEL.tokenizer.decode(asked.prompt, skip_special_tokens=False)
    heard = text.split("<|im_start|>user\n")[-1].split("<|im_end|>")[0].split()[-1]
    return Tokens(ids(str(int(heard) + 1 if heard.isdigit() else 1)))


async def test_each_seat_trains_on_the_tokens_it_sampled(tmp_path: Path) -> None:
    folder = MODEL.save(tmp_path / "tokenizer")
    async with VLLMServer(counts_in_tokens) as server:
        endpoint = APIServerConfig.model_validate(
            {"base_url": server.base_url, "model_name": "scripted", "server_type": "vllm", "max_retries": 0}
        )
        config = Counting.env_config_cls.model_validate({"tokenizer_name": str(folder), "group_size": 2})
        env = Counting(config, [endpoint])
        async with env.opened():
            groups = await env.collect_groups(ITEM)
    sampled = {
        group.rollouts[0].seat: [token for token, kept in zip(sequence.tokens, sequence.mask, strict=True) if kept]
        for group in groups
        for sequence in group.rollouts[0].sequences
    }
    assert sampled == {"odd": [*ids("1"), *ids("3")], "even": [*ids("2"), *ids("4")]}
    for group in groups:
        assert decode(encode(group)) == group
        assert group_from_record(json.loads(json.dumps(group_to_record(group)))) == group


def seat_group(seat: str, scores: Sequence[float], like: Group) -> bytes:
    """A group of one-token answers with these scores."""
    one = TokenSequence((1, 2), (0, 1), (None, -0.5), (None, 0), Sampling(1.0, logprobs="processed"))
    rollouts = tuple(
        Rollout(
            item_id="game", index=at, seed=at, messages=[], score=score, stop_reason=StopReason.ENDED,
            turns_used=1, sequences=(one,), seat=seat,
        )
        for at, score in enumerate(scores)
    )  # fmt: skip
    return encode(Group(item_id="game", item=ITEM, rollouts=rollouts, provenance=like.provenance))


async def test_a_seat_is_compared_with_itself_only() -> None:
    """The first mover usually wins. Its only loss must count against it, and the second's only draw for it.

    X: 1, 1, 1, 0 (mean 0.75). O: 0, 0, 0, 0.4 (mean 0.1): its last is +0.3. Over all eight the mean is 0.425, and O's
    best episode would be -0.025: pushed down.
    """
    [like, *_] = await groups_of(Counting, group_size=1)
    groups = [seat_group("X", (1.0, 1.0, 1.0, 0.0), like), seat_group("O", (0.0, 0.0, 0.0, 0.4), like)]
    batch = training_batch(groups, TrainerSettings(advantage="mean"), version=0)
    assert [
        example.advantages.max(initial=-9.0, where=example.mask > 0) for example in batch.examples
    ] == pytest.approx([0.25, 0.25, 0.25, -0.75, -0.1, -0.1, -0.1, 0.3])
    assert [outcome.seat for outcome in batch.outcomes] == ["X"] * 4 + ["O"] * 4


async def test_equal_scores_of_a_seat_withhold_that_seat_only() -> None:
    by_seed = iter(range(100))

    def differs_for_even(request: dict[str, Any]) -> Text:
        if "even" in request["messages"][0]["content"]:
            return Text(str(next(by_seed)))
        return Text("1")

    odd, even = await groups_of(Counting, differs_for_even)
    assert (odd.withheld, even.withheld) == ("equal_scores", None)


# --- evaluation, records, replays, validation ---


async def test_an_evaluation_has_the_rollouts_of_all_seats() -> None:
    async with ScriptedModel(counts) as model, opened(Counting, model) as env:
        group = await run_group(env, ITEM, size=2, split="eval")
    assert [(rollout.seat, rollout.index) for rollout in group.rollouts] == [
        ("odd", 0), ("odd", 1), ("even", 2), ("even", 3),
    ]  # fmt: skip


async def test_an_evaluation_compares_the_rollouts_of_one_seat_only() -> None:
    """Odd says 1, then 3, in every episode: its pass rate at 5 is 0, and even's, which says 2, then 4, is 1."""
    async with ScriptedModel(counts) as model, opened(Counting, model) as env:
        group = await run_group(env, ITEM, size=2, split="eval")
    evaluation = EvaluationCounts([group.item_id], samples=2, temperature=1.0, pass_score=5.0)
    evaluation.add(group)
    metrics = evaluation.metrics(1.0)
    assert (metrics["eval/seat/odd/pass@2"], metrics["eval/seat/even/pass@2"]) == (0.0, 1.0)
    assert (metrics["eval/seat/odd/mean_reward"], metrics["eval/seat/even/mean_reward"]) == (4.0, 6.0)
    assert metrics["eval/pass@1"] == 0.5
    assert "eval/pass@2" not in metrics


async def test_process_reports_each_seat(tmp_path: Path) -> None:
    async with ScriptedModel(counts) as model, opened(Counting, model, total_steps=2, group_size=2) as env:
        tally = await generate_groups(env, tmp_path / "groups.jsonl")
    assert tally.summary()["seats"] == {"even": 6.0, "odd": 4.0}
    assert [group.draw for group in read_groups(tmp_path / "groups.jsonl")] == [0, 0, 1, 1]


class Generous(Counting):
    """The same game with another reward."""

    async def compute_seat_rewards(self, item: Any, results: Any, ctx: EpisodeContext) -> dict[str, float]:
        return {seat: 10.0 * len(ctx.state.said) for seat in results}


async def test_a_rescore_plays_the_recorded_answers_again() -> None:
    groups = await groups_of(Counting)
    new: list[Group] = []
    stats = RescoreStats()
    async with ScriptedModel(lambda _: Status(500)) as model, opened(Generous, model) as env:
        await rescore_groups(env, groups, new.append, stats)
    assert [group.scores for group in new] == [[40.0, 40.0], [40.0, 40.0]]
    assert (stats.up, stats.replayed, model.requests) == (4, 4, 0)
    assert [group.rollouts[0].messages for group in new] == [group.rollouts[0].messages for group in groups]


async def test_a_rescore_gives_the_frozen_seat_its_answers() -> None:
    async with ScriptedModel(lambda _: Text("10")) as other:
        endpoint = {"base_url": other.base_url, "model_name": other.model_name}
        groups = await groups_of(Counting, seat_endpoints={"even": endpoint})
    assert {frozenset(seats) for seats in episodes(groups[0].rollouts).values()} == {frozenset({"odd", "even"})}
    new: list[Group] = []
    async with ScriptedModel(lambda _: Status(500)) as model, opened(Generous, model) as env:
        await rescore_groups(env, groups, new.append, RescoreStats())
    assert [group.scores for group in new] == [[40.0, 40.0]]


async def test_a_rescore_from_the_transcript_alone_is_refused() -> None:
    async with ScriptedModel(counts) as model, opened(Counting, model) as env:
        with pytest.raises(ConfigError, match="several agents"):
            await rescore_groups(env, [], list[Group]().append, RescoreStats(), source=RescoreSource.TRANSCRIPT)


class Solved(Counting):
    """A seat passes with a sum of at least 4; nobody passes by saying nothing."""

    fair: ClassVar[bool] = True

    def next_seat(self, item: Any, state: Count, last: SeatAnswer | None) -> str | None:
        return super().next_seat(item, state, last and last._replace(text=last.text or "0"))

    async def compute_seat_rewards(self, item: Any, results: Any, ctx: EpisodeContext) -> dict[str, float]:
        return {seat: float(sum(number for who, number in ctx.state.said if who == seat) >= 4) for seat in results}

    def seat_oracle(self, item: Any, seat: str) -> dict[str, list[Step]]:
        return {"odd": ["1", "3"], "even": ["2", "2" if self.fair else "1"]}


async def played(environment: type[HermesMultiAgentEnv]) -> tuple[list[ScriptedRollout], list[ValidationFinding]]:
    """The scripted episodes of validate on two items, and what it finds in their scores."""
    async with ScriptedModel(lambda _: Status(500)) as model, opened(environment, model) as env:
        items = (await take_inventory(env)).chosen(2)
        trials, findings = await run_seat_agents(env, items, lambda *_: None)
    return trials, [*findings, *score_findings(trials, 1.0)]


async def test_validate_plays_an_oracle_for_each_seat() -> None:
    trials, findings = await played(Solved)
    assert {trial.agent for trial in trials} == {"null", "oracle of odd", "oracle of even"}
    assert findings == []


async def test_validate_finds_a_seat_whose_oracle_fails() -> None:
    class Unfair(Solved):
        fair = False

    [finding] = [each for each in (await played(Unfair))[1] if each.code == "oracle_fails"]
    assert "(even)" in finding.seen
    assert "(odd)" not in finding.seen


async def test_validate_finds_an_oracle_without_a_turn() -> None:
    class Mute(Solved):
        def next_seat(self, item: Any, state: Count, last: SeatAnswer | None) -> str | None:
            return "odd" if last is None else None

    assert "no_turn" in {finding.code for finding in (await played(Mute))[1]}


@pytest.mark.parametrize("environment", [TicTacToeEnv, NegotiationEnv])
async def test_the_examples_are_won_by_their_oracles(environment: type[HermesMultiAgentEnv]) -> None:
    trials, findings = await played(environment)
    assert findings == []
    assert {trial.agent for trial in trials} == {"null", *(f"oracle of {seat}" for seat in environment.seats)}


async def test_episodes_run_side_by_side() -> None:
    waiting, arrived = asyncio.Event(), []

    async def both(self: Any, item: Any, state: Count, last: SeatAnswer | None) -> str | None:
        if last is None:
            arrived.append(state)
            if len(arrived) == 2:
                waiting.set()
            await waiting.wait()
        return Counting.next_seat(self, item, state, last)

    groups = await groups_of(type("Both", (Counting,), {"next_seat": both}))
    assert [group.scores for group in groups] == [[4.0, 4.0], [6.0, 6.0]]
    assert np.unique([id(state) for state in arrived]).size == 2
