"""`rescore`: recorded rollouts scored again after a reward changed, without paying for inference.

From the transcript alone when the reward asks for nothing else; when it looks into the sandbox, the recorded tool calls
are carried out again in a fresh one first. A rollout that failed outside the verifier has no finished work to score and
stays as it was. Nothing of the recorded file is changed.
"""

import asyncio
import statistics
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from hermes_rl.agent.result import AgentResult
from hermes_rl.environment.contract import Environment
from hermes_rl.environment.groups import compared, provenance, with_reward
from hermes_rl.environment.replaying import LockedPool, Replayed, fresh_session, recorded_result, replay_calls
from hermes_rl.environment.rollouts import Finished, reward_for
from hermes_rl.errors import HermesRLError, SandboxError, Whose, failure_of
from hermes_rl.trajectory import Group, Reward, Rollout

AT_ONCE = 16
EXAMPLES = 5
SHOWN = 200


class Source(StrEnum):
    """What a rollout is scored from; `auto` is the transcript unless the reward asks for more."""

    AUTO = "auto"
    TRANSCRIPT = "transcript"
    REPLAY = "replay"


@dataclass(slots=True)
class Moved:
    """What a rescoring changed."""

    groups: int = 0
    same: int = 0
    up: int = 0
    down: int = 0
    newly_scored: int = 0
    no_longer_scored: int = 0
    not_scorable: int = 0
    replayed: int = 0
    from_transcript: int = 0
    calls: int = 0
    calls_that_differ: int = 0
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    failure_examples: dict[str, str] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)
    drift: list[dict[str, Any]] = field(default_factory=list)

    def add(self, group: Group, old: Rollout, new: Rollout) -> None:
        if old.score is not None:
            self.before.append(old.score)
        if new.score is not None:
            self.after.append(new.score)
        if old.score is None or new.score is None:
            self.newly_scored += new.score is not None
            self.no_longer_scored += old.score is not None
            self.not_scorable += old.score is None and new.score is None
        elif old.score == new.score:
            self.same += 1
        else:
            self.up += new.score > old.score
            self.down += new.score < old.score
        if new.failure is not None and new.failure != old.failure:
            self.failures[str(new.failure)] += 1
            self.failure_examples.setdefault(str(new.failure), new.failure.message)
        if old.score != new.score and len(self.examples) < EXAMPLES:
            self.examples.append(
                {"group": group.id, "item_id": group.item_id, "rollout": old.index, "from": old.score, "to": new.score}
            )

    def add_call(self, group: Group, rollout: Rollout, call: Replayed) -> None:
        self.calls += call.answer is not None
        self.calls_that_differ += call.differs
        if call.differs and len(self.drift) < EXAMPLES:
            self.drift.append(
                {
                    "group": group.id,
                    "rollout": rollout.index,
                    "call": f"{call.use.name}({call.use.arguments[:SHOWN]})",
                    "recorded": call.use.result[:SHOWN],
                    "replayed": (call.answer or "")[:SHOWN],
                }
            )

    def summary(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "groups": self.groups,
            "rollouts": {
                "same": self.same,
                "up": self.up,
                "down": self.down,
                "newly_scored": self.newly_scored,
                "no_longer_scored": self.no_longer_scored,
                "not_scorable": self.not_scorable,
            },
            "mean_before": statistics.fmean(self.before) if self.before else None,
            "mean_after": statistics.fmean(self.after) if self.after else None,
            "from_transcript": self.from_transcript,
            "replayed": self.replayed,
            "calls": self.calls,
            "calls_that_differ": self.calls_that_differ,
            "failures": dict(self.failures),
            "failure_examples": self.failure_examples,
            "examples": self.examples,
            "drift": self.drift,
        }


async def rescore_groups(
    env: Environment,
    groups: Iterable[Group],
    keep: Callable[[Group], object],
    moved: Moved,
    *,
    source: Source = Source.AUTO,
) -> None:
    """Score every group again; `keep` gets the new ones in the order of the old."""
    known = items_by_id(env)
    slots = asyncio.Semaphore(AT_ONCE)
    waiting: deque[asyncio.Task[Group]] = deque()

    async def one(group: Group) -> Group:
        return await _rescored(env, group, known.get(group.item_id, group.item), source, moved, slots)

    async with asyncio.TaskGroup() as work:
        for group in groups:
            waiting.append(work.create_task(one(group)))
            if len(waiting) > AT_ONCE:
                keep(await waiting.popleft())
        while waiting:
            keep(await waiting.popleft())


async def _rescored(
    env: Environment, group: Group, item: Any, source: Source, moved: Moved, slots: asyncio.Semaphore
) -> Group:
    async def one(rollout: Rollout) -> Finished:
        async with slots:
            return await _scored_again(env, group, item, rollout, source, moved)

    async with asyncio.TaskGroup() as work:
        tasks = [work.create_task(one(rollout)) for rollout in group.rollouts]
    rollouts: Sequence[Rollout] = await compared(env, item, [task.result() for task in tasks])
    withheld = None
    if group.split != "eval":
        rollouts, withheld = env.group_rules().judged(rollouts)
    moved.groups += 1
    for old, new in zip(group.rollouts, rollouts, strict=True):
        moved.add(group, old, new)
    own = provenance(env)
    source_of = replace(group.provenance, environment_hash=own.environment_hash, versions=own.versions)
    return replace(group, rollouts=tuple(rollouts), withheld=withheld, provenance=source_of)


async def _scored_again(
    env: Environment, group: Group, item: Any, rollout: Rollout, source: Source, moved: Moved
) -> Finished:
    result = recorded_result(rollout)
    elsewhere = rollout.failure is not None and rollout.failure.whose not in (Whose.VERIFIER, Whose.JUDGE)
    if rollout.stop_reason is None or elsewhere:
        return Finished(rollout, result)
    try:
        result.reward = await _reward(env, group, item, rollout, result, source, moved)
    except Exception as error:  # noqa: BLE001 (as in a rollout, every error becomes a Failure)
        unscored = replace(rollout, score=None, failure=failure_of(error), components={}, turn_scores=(), withheld=None)
        return Finished(unscored, result)
    cleared = replace(rollout, score=result.reward.score, failure=None, withheld=None)
    return Finished(with_reward(cleared, result.reward), result)


async def _reward(
    env: Environment, group: Group, item: Any, rollout: Rollout, result: AgentResult, source: Source, moved: Moved
) -> Reward:
    if source is not Source.REPLAY:
        async with fresh_session(env, item) as session:
            session.pool = locked = LockedPool(session.pool)
            reward: Reward | None = None
            try:
                reward = await reward_for(env, item, result, session.task_id, session)
            except HermesRLError:
                if not locked.asked_for:
                    raise
        # An author may catch what the locked pool raised and score what is left; that score counts for nothing.
        if reward is not None and not locked.asked_for:
            moved.from_transcript += 1
            return reward
    if source is Source.TRANSCRIPT:
        raise SandboxError("transcript", "the reward looks into the sandbox; rescore with --from replay")
    async with fresh_session(env, item) as session:
        async for call in replay_calls(env, rollout, group.tools, session):
            moved.add_call(group, rollout, call)
        await session.end_policy()
        moved.replayed += 1
        return await reward_for(env, item, result, session.task_id, session)


def items_by_id(env: Environment) -> dict[str, Any]:
    """The items as the author made them: a record holds what JSON makes of a tuple or a dataclass."""
    return {env.item_id(item): item for item in (*(env.train_items() or ()), *env.eval_items())}
