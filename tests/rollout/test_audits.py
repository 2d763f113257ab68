"""The withheld verifier sees the best rollouts of a group, and nothing it does changes what is trained on."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl import AgentResult, Reward, ToolContext
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import AuditedReward, Group
from hermes_rl.rollout.audits import GroupAudits, group_audits
from hermes_rl.rollout.config import HermesAgentEnvConfig
from hermes_rl.rollout.group import run_group
from hermes_rl.rollout.metrics import RolloutCounts
from hermes_rl.store.codec import decode, encode
from hermes_rl.store.records import group_from_record, group_to_record
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import Calls, ScriptedModel, Text

ITEM = {"number": 7}


class TrustingEnv(FileEnv):
    """The reward believes a file; the audit reads the answer, and whether the sandbox is still there."""

    async def compute_reward(self, item: dict[str, int], result: AgentResult, ctx: ToolContext) -> float | Reward:
        return float(ctx.terminal("cat reward.txt")["output"].strip() or 0)

    async def audit_reward(self, item: dict[str, int], result: AgentResult, ctx: ToolContext) -> float | Reward:
        assert result.reward is not None
        right = ctx.terminal("cat answer")["output"].strip() == str(item["number"])
        return Reward(float(right), {"trained": result.reward.score}, notes={"why": "the answer"})


def script(*commands: str) -> Any:
    """A model whose rollouts run these commands, one each in the order they ask, then say that they are done."""
    left = list(commands)

    def answer(request: dict[str, Any]) -> Calls | Text:
        if request["messages"][-1]["role"] == "tool":
            return Text("done")
        return Calls([("terminal", json.dumps({"command": left.pop(0)}))])

    return answer


async def group_of(
    *commands: str, environment: type[FileEnv] = TrustingEnv, split: str = "train", **config: Any
) -> Group:
    async with ScriptedModel(script(*commands)) as model, opened(environment, model, **config) as env:
        return await run_group(env, ITEM, size=len(commands), split=split)


HONEST = "echo 7 > answer; echo 1 > reward.txt"
CHEAT = "echo 2 > reward.txt"


async def test_the_best_rollout_is_audited_and_keeps_its_score() -> None:
    group = await group_of(HONEST, CHEAT, "true", "true", audit_share=0.25)
    audited = {rollout.score: rollout.audit for rollout in group.rollouts if rollout.audit}
    assert audited == {2.0: AuditedReward(0.0, {"trained": 2.0}, {"why": "the answer"})}
    assert sorted(group.scores) == [0.0, 0.0, 1.0, 2.0]
    [rollout] = [rollout for rollout in group.rollouts if rollout.audit]
    assert rollout.audit_gap == 2.0
    assert {"compute_reward", "audit_reward"} <= {timing.name for timing in rollout.timings}


async def test_an_audit_is_in_every_record_of_its_rollout() -> None:
    group = await group_of(CHEAT, "true", audit_share=0.5)
    assert group_from_record(json.loads(json.dumps(group_to_record(group)))).rollouts == group.rollouts
    assert [one.audit for one in decode(encode(group)).rollouts] == [one.audit for one in group.rollouts]


@pytest.mark.parametrize("config", [{"audit": "off"}, {"audit_share": 0.0}, {"split": "eval"}])
async def test_nothing_is_audited(config: dict[str, Any]) -> None:
    group = await group_of(CHEAT, **{"audit_share": 1.0, **config})
    assert [rollout.audit for rollout in group.rollouts] == [None]


async def test_an_environment_without_audit_reward_is_audited_by_signatures_on_request() -> None:
    [plain] = (await group_of("echo 7 > answer", environment=FileEnv, audit_share=1.0)).rollouts
    assert plain.audit is None
    cheated = f"echo 7 > answer; {CHEAT}"
    group = await group_of(cheated, "echo 7 > answer", environment=FileEnv, audit_share=1.0, audit="signatures")
    assert sorted(one.audit.score for one in group.rollouts if one.audit and one.audit.score is not None) == [0.0, 1.0]


class FailingAudit(TrustingEnv):
    async def audit_reward(self, item: dict[str, int], result: AgentResult, ctx: ToolContext) -> float | Reward:
        return float("nan") if result.reward == Reward(2.0) else 1 / 0


async def test_an_audit_that_raises_is_counted_and_the_rollout_keeps_its_score() -> None:
    group = await group_of(CHEAT, HONEST, environment=FailingAudit, audit_share=1.0)
    assert sorted(group.scores) == [1.0, 2.0]
    errors = sorted(str(one.audit and one.audit.error) for one in group.rollouts)
    assert "verifier/not_finite" in errors[0]
    assert "ZeroDivisionError" in errors[1]
    counts = RolloutCounts()
    counts.add(group)
    summary = counts.summary()
    assert (summary["audited"], summary["audit_errors"], summary["mean_score"]) == (0, 2, 1.5)
    assert "audit_gap" not in summary


class SlowAudit(TrustingEnv):
    async def audit_reward(self, item: dict[str, int], result: AgentResult, ctx: ToolContext) -> float | Reward:
        ctx.terminal("sleep 60")
        return 0.0


async def test_an_audit_that_takes_too_long_is_no_fault_of_the_rollout() -> None:
    [rollout] = (await group_of(CHEAT, environment=SlowAudit, audit_share=1.0, worker_timeout=4)).rollouts
    assert (rollout.score, rollout.failure) == (2.0, None)
    assert rollout.audit is not None
    assert rollout.audit.error == "did not finish within 4 s (worker_timeout)"


class TwoAgents(TrustingEnv):
    seats: ClassVar[Sequence[str]] = ("buyer", "seller")


async def test_several_agents_cannot_be_audited() -> None:
    async with ScriptedModel(script()) as model, opened(TwoAgents, model) as env:
        with pytest.raises(ConfigError, match=r"whose rollouts cannot be audited; set --env\.audit off"):
            group_audits(env, 4, "key")


def test_a_setting_names_an_audit_that_exists() -> None:
    with pytest.raises(ValueError, match="no audit is named 'signature': choose one of auto, off, signatures"):
        HermesAgentEnvConfig(audit="signature")


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=5), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_the_same_rollouts_are_audited_in_whatever_order_they_finish(scores: list[float], count: int) -> None:
    kept = set()
    for order in permutations(enumerate(scores)):
        audits = GroupAudits(count)
        # Every rollout of the final choice was wanted when it finished.
        wanted = {seed for seed, score in order if audits.wants(seed, score)}
        assert audits.chosen() <= wanted
        kept.add(audits.chosen())
    [chosen] = kept
    assert sorted((scores[seed] for seed in chosen), reverse=True) == sorted(scores, reverse=True)[:count]


async def test_a_share_below_one_rollout_is_drawn_by_group_and_the_same_each_time(tmp_path: Path) -> None:
    async with ScriptedModel(script()) as model, opened(TrustingEnv, model, audit_share=0.0625) as env:
        drawn = [group_audits(env, 4, f"0/{draw}/item") for draw in range(400)]
        assert drawn == [group_audits(env, 4, f"0/{draw}/item") for draw in range(400)]
        assert 70 <= sum(one is not None for one in drawn) <= 130
        counts = [one.count for one in (group_audits(env, 40, str(draw)) for draw in range(200)) if one]
        assert (set(counts), len(counts)) == ({2, 3}, 200)


def test_the_gap_of_a_group_is_counted_without_its_failed_audits() -> None:
    from tests.training.recorded_groups import group, rollout

    counts = RolloutCounts()
    made = [replace(rollout(score, ".#"), audit=audit) for score, audit in (
        (1.0, AuditedReward(0.0)), (1.0, AuditedReward(0.5)), (0.5, AuditedReward(None, error="raised")), (0.0, None),
    )]  # fmt: skip
    counts.add(group(*made))
    assert (counts.audit_gaps, counts.summary()["audit_gap"]) == ([[1.0, 0.5]], 0.75)
    assert dict(counts.audit_errors) == {"raised": 1}
