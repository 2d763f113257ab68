"""Tree groups on a token engine and in real sandboxes: what a branch is sent, finds, uses and is recorded as."""

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from hermes_rl import AgentResult, ConfigError, HermesAgentEnvConfig, Reward, ToolContext
from hermes_rl.core.trajectory import Branch, Group, Rollout, StopReason
from hermes_rl.evaluation.rescore import RescoreSource, RescoreStats, rescore_groups
from hermes_rl.rollout.group import run_group
from hermes_rl.rollout.metrics import RolloutCounts
from hermes_rl.store.codec import decode, encode
from hermes_rl.store.records import group_from_record, group_to_record
from hermes_rl.tools.session import ToolSession
from hermes_rl.training.batch import training_batch
from hermes_rl.training.config import TrainerSettings
from tests.environment.test_exact_rollouts import MODEL, call, exact, ids
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import ScriptedModel, Text
from tests.support.token_servers import Asked, Tokens, VLLMServer

ITEM = {"number": 7}
TREE: dict[str, Any] = {"group_strategy": "tree", "group_size": 4, "tree_roots": 1, "tree_branches": 3}


class Lines(FileEnv):
    """Scored by the last line of a file. Notes keep the whole file, and the token usage that the reward saw."""

    async def compute_reward(self, item: dict[str, int], result: AgentResult, ctx: ToolContext) -> float | Reward:
        lines = ctx.terminal("cat lines")["output"].split()
        notes = {"lines": " ".join(lines), "tokens": str(result.usage.completion_tokens)}
        return Reward(float(lines[-1]) if lines else 0.0, notes=notes)


def results(asked: Asked) -> int:
    """How many tool results the conversation has."""
    text = MODEL.tokenizer.decode(asked.prompt, skip_special_tokens=False)
    return str(text).split("<|im_start|>user\nwrite ")[1].count("<tool_response>")


def appends(command: str = "echo {} >> lines; wc -l < lines", turns: int = 3) -> Callable[[Asked], Tokens]:
    """Append another number in each of three turns, then stop: no two answers are the same."""
    numbers = count(1)

    def answer(asked: Asked) -> Tokens:
        return Tokens(ids(call(command.format(next(numbers))) if results(asked) < turns else "Done."))

    return answer


async def made(tmp_path: Path, answer: Callable[[Asked], Tokens], **config: Any) -> tuple[Group, list[tuple[int, ...]]]:
    async with VLLMServer(answer) as server, exact(server, tmp_path, kind=Lines, **TREE | config) as env:
        group = await env.collect_group(ITEM)
        return group, [tuple(body["token_ids"]) for body in server.bodies]


def lines(rollout: Rollout) -> list[str]:
    return rollout.notes["lines"].split()


def sampled(rollout: Rollout) -> int:
    return sum(sum(sequence.mask) for sequence in rollout.sequences)


async def test_branches_continue_the_tokens_and_the_files_of_their_root(tmp_path: Path) -> None:
    group, prompts = await made(tmp_path, appends())
    root, *branches = group.rollouts
    [whole] = root.sequences
    assert root.branch is None
    [turn] = {branch.branch.turn for branch in branches if branch.branch}
    number, begin = whole.calls[turn - 1]
    assert number == turn - 1
    # The root and each of its three branches sent the same prompt, id by id.
    assert prompts.count(whole.tokens[:begin]) == 4
    for branch in branches:
        assert branch.branch == Branch(0, turn)
        [own] = branch.sequences
        assert own.tokens[:begin] == whole.tokens[:begin]
        assert not any(own.mask[:begin])
        assert [each.call for each in own.calls] == list(range(turn - 1, 4))
        assert own.calls[0].begin == begin
        assert "breaches" not in branch.metadata
        assert lines(branch)[: turn - 1] == lines(root)[: turn - 1]
        assert len(lines(branch)) == len(lines(root)) == 3
        assert branch.messages[: 2 * turn - 1] == root.messages[: 2 * turn - 1]
        assert (branch.turns_used, branch.stop_reason) == (4, StopReason.NATURAL)
        assert [use.turn for use in branch.tool_uses] == [1, 2, 3]
    assert len(prompts) == 4 + 3 * (5 - turn)


async def test_a_branch_has_the_state_of_its_root_and_is_sampled_by_its_own_chance(tmp_path: Path) -> None:
    class Rolls(Lines):
        def initial_state(self, item: dict[str, int], session: ToolSession | None = None) -> int:
            assert session is not None
            return session.rng.randrange(10**9)

    async with VLLMServer(appends()) as server, exact(server, tmp_path, kind=Rolls, **TREE) as env:
        group = await env.collect_group(ITEM)
        root, *branches = group.rollouts
        begin = branches[0].sequences[0].mask.index(1)
        seeds = [body["sampling_params"]["seed"] for body in server.bodies if len(body["token_ids"]) == begin]
        assert len(set(seeds)) == len(seeds) == 4
        assert {(rollout.seed, rollout.states) for rollout in group.rollouts} == {(root.seed, root.states)}
        again: list[Group] = []
        await rescore_groups(env, [group], again.append, RescoreStats(), source=RescoreSource.REPLAY)
    assert [one.scores for one in again] == [group.scores]
    assert [rollout.branch for rollout in again[0].rollouts] == [rollout.branch for rollout in group.rollouts]


async def test_a_branch_is_stored_and_read_again(tmp_path: Path) -> None:
    group, _ = await made(tmp_path, appends())
    assert group_from_record(json.loads(json.dumps(group_to_record(group)))) == group
    assert [rollout.branch for rollout in decode(encode(group)).rollouts] == [one.branch for one in group.rollouts]
    older = group_to_record(group)
    for record in older["rollouts"]:
        del record["branch"]
    assert {rollout.branch for rollout in group_from_record(older).rollouts} == {None}


async def test_every_sampled_token_is_counted_and_trained_on_once(tmp_path: Path) -> None:
    answered = []

    def noted(asked: Asked) -> Tokens:
        answered.append(answer(asked))
        return answered[-1]

    answer = appends()
    group, prompts = await made(tmp_path, noted, tree_turn="highest_entropy")
    spent = sum(len(tokens.ids) for tokens in answered)
    assert sum(map(sampled, group.rollouts)) == spent
    assert sum(rollout.usage.completion_tokens or 0 for rollout in group.rollouts) == spent
    assert sum(rollout.usage.prompt_tokens or 0 for rollout in group.rollouts) == sum(map(len, prompts))
    batch = training_batch([encode(group)], TrainerSettings(), 0)
    assert sum(int(example.mask.sum()) for example in batch.examples) == spent


async def test_the_reward_of_a_branch_knows_the_tokens_of_the_whole_conversation(tmp_path: Path) -> None:
    group, _ = await made(tmp_path, appends())
    root, *branches = group.rollouts
    assert int(root.notes["tokens"]) == sampled(root)
    for branch in branches:
        [own] = branch.sequences
        shared = sum(root.sequences[0].mask[: own.mask.index(1)])
        assert int(branch.notes["tokens"]) == sampled(branch) + shared


async def test_the_branches_of_a_root_spread_over_its_turns(tmp_path: Path) -> None:
    group, _ = await made(tmp_path, appends(), group_size=8, tree_roots=2, tree_branches=1)
    branches = [rollout.branch for rollout in group.rollouts]
    assert branches[:2] == [None, None]
    for root in (0, 1):
        assert {branch.turn for branch in branches if branch and branch.rollout == root} == {2, 3, 4}


async def test_a_replay_with_another_result_makes_an_independent_rollout_and_is_counted(tmp_path: Path) -> None:
    group, _ = await made(tmp_path, appends("echo {} >> lines; cat /proc/sys/kernel/random/uuid"))
    root, *others = group.rollouts
    for other in others:
        assert other.branch is None
        reason = other.metadata["not_branched"]
        assert (reason["reason"], reason["failure"], reason["root"]) == ("replay", "environment/replay", 0)
        assert other.scored
        assert not set(lines(other)) & set(lines(root))
    counts = RolloutCounts()
    counts.add(group)
    assert counts.summary()["not_branched"] == {"replay": 3}
    assert "turn 1, terminal" in counts.summary()["failure_examples"]["environment/replay"]
    assert "branches" not in counts.summary()


async def test_a_root_of_one_turn_has_independent_rollouts_beside_it(tmp_path: Path) -> None:
    group, _ = await made(tmp_path, appends(turns=0), ensure_scores_are_not_same=False)
    assert [rollout.branch for rollout in group.rollouts] == [None] * 4
    assert [rollout.metadata.get("not_branched") for rollout in group.rollouts] == [None, *[{"reason": "no_turn"}] * 3]


async def test_branches_are_counted(tmp_path: Path) -> None:
    group, _ = await made(tmp_path, appends())
    counts = RolloutCounts()
    counts.add(group)
    assert counts.summary()["branches"] == 3


async def test_a_failed_call_is_made_again_by_the_branches(tmp_path: Path) -> None:
    numbers = count(1)

    def fails_at_the_second(asked: Asked) -> Tokens:
        number = next(numbers)
        command = f"echo {number} >> lines" + ("; exit 3" if number == 2 else "")
        return Tokens(ids(call(command) if results(asked) < 3 else "Done."))

    group, _ = await made(tmp_path, fails_at_the_second, tree_turn="first_failed_call")
    assert [rollout.branch for rollout in group.rollouts] == [None, *[Branch(0, 2)] * 3]


async def test_an_evaluation_never_branches(tmp_path: Path) -> None:
    async with VLLMServer(appends()) as server, exact(server, tmp_path, kind=Lines, **TREE) as env:
        group = await run_group(env, ITEM, size=4, split="eval")
    assert {rollout.branch for rollout in group.rollouts} == {None}


async def test_the_turns_of_a_root_count_towards_the_limits_of_its_branches(tmp_path: Path) -> None:
    group, _ = await made(tmp_path, appends(turns=9), max_agent_turns=3, tree_turn="uniform")
    assert {rollout.turns_used for rollout in group.rollouts} == {3}
    group, _ = await made(tmp_path, appends(turns=9), max_tool_calls=2)
    assert {len(rollout.tool_uses) for rollout in group.rollouts} == {2}


async def test_an_endpoint_without_tokens_is_refused() -> None:
    async with ScriptedModel(lambda _: Text("hello")) as model, opened(Lines, model, **TREE) as env:
        with pytest.raises(ConfigError, match="server_type vllm"):
            await env.collect_group(ITEM)


async def test_an_environment_that_makes_its_own_rollouts_is_refused() -> None:
    class Own(Lines):
        async def collect_trajectory(self, item: Any) -> tuple[Any, list[Any]]:
            return await super().collect_trajectory(item)

    async with ScriptedModel(lambda _: Text("hello")) as model, opened(Own, model, **TREE) as env:
        with pytest.raises(ConfigError, match="makes its own rollouts"):
            await env.collect_group(ITEM)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tree_roots": 1}, "tree_roots needs group_strategy tree"),
        ({"group_strategy": "tree", "group_size": 2}, "leave no rollout to branch"),
        ({"group_strategy": "bush"}, "no group strategy is named 'bush': choose one of flat, tree"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        HermesAgentEnvConfig.model_validate(settings)
