"""`rescore`: score recorded rollouts again after a reward changed, without inference cost.

The transcript alone is used if the reward needs nothing else. If it accesses the sandbox, the recorded tool calls are
first replayed in a fresh one. A rollout that failed outside the verifier stays unchanged. The recorded file is never
modified.
"""

import asyncio
import statistics
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import groupby
from typing import Any

from hermes_rl.agent.result import AgentResult
from hermes_rl.core.errors import ConfigError, FailureSource, HermesRLError, SandboxError, failure_of
from hermes_rl.core.tolerance import same_score
from hermes_rl.core.trajectory import Group, Reward, Rollout
from hermes_rl.evaluation.replay_seats import episodes, replay_episode, replayed_calls
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.group import apply_group_rewards, provenance, with_reward
from hermes_rl.rollout.replay import (
    LockedPool,
    ReplayedCall,
    fresh_session,
    recorded_result,
    replay_calls,
    take_step_rewards,
)
from hermes_rl.rollout.rollout import FinishedRollout, compute_rollout_reward

CONCURRENT_ROLLOUTS = 16
MAX_EXAMPLES = 5
MAX_SHOWN = 200


class RescoreSource(StrEnum):
    """What a rollout is scored from; `auto` is the transcript unless the reward accesses the sandbox."""

    AUTO = "auto"
    TRANSCRIPT = "transcript"
    REPLAY = "replay"


@dataclass(slots=True)
class RescoreStats:
    """How a rescoring changed the scores."""

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
        same = same_score(old.score, new.score)
        if old.score is None or new.score is None:
            self.newly_scored += new.score is not None
            self.no_longer_scored += old.score is not None
            self.not_scorable += old.score is None and new.score is None
        elif same:
            self.same += 1
        else:
            self.up += new.score > old.score
            self.down += new.score < old.score
        if new.failure is not None and new.failure != old.failure:
            self.failures[str(new.failure)] += 1
            self.failure_examples.setdefault(str(new.failure), new.failure.message)
        if not same and len(self.examples) < MAX_EXAMPLES:
            self.examples.append(
                {"group": group.id, "item_id": group.item_id, "rollout": old.index, "from": old.score, "to": new.score}
            )

    def add_call(self, group: Group, rollout: Rollout, call: ReplayedCall) -> None:
        self.calls += call.answer is not None
        self.calls_that_differ += call.differs
        if call.differs and len(self.drift) < MAX_EXAMPLES:
            self.drift.append(
                {
                    "group": group.id,
                    "rollout": rollout.index,
                    "call": f"{call.use.name}({call.use.arguments[:MAX_SHOWN]})",
                    "recorded": call.use.result[:MAX_SHOWN],
                    "replayed": (call.answer or "")[:MAX_SHOWN],
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
    write: Callable[[Group], object],
    stats: RescoreStats,
    *,
    source: RescoreSource = RescoreSource.AUTO,
) -> None:
    """Score every group again; `write` gets the new groups in the order of the old."""
    if env.seats and source is RescoreSource.TRANSCRIPT:
        raise ConfigError(
            f"{env.display_name()} has several agents, so its state comes from a replay of their answers; leave out "
            "--from transcript"
        )
    known = items_by_id(env)
    slots = asyncio.Semaphore(CONCURRENT_ROLLOUTS)
    pending: deque[asyncio.Task[list[Group]]] = deque()
    async with asyncio.TaskGroup() as work:
        for draw in _draws(env, groups):
            item = known.get(draw[0].item_id, draw[0].item)
            rescored = (
                _rescore_seats(env, draw, item, stats, slots)
                if env.seats
                else _rescore_group(env, draw, item, source, stats, slots)
            )
            pending.append(work.create_task(rescored))
            if len(pending) > CONCURRENT_ROLLOUTS:
                for group in await pending.popleft():
                    write(group)
        while pending:
            for group in await pending.popleft():
                write(group)


def _draws(env: Environment, groups: Iterable[Group]) -> Iterator[list[Group]]:
    """The groups that are scored together: one, or those of all seats of a draw, which follow each other."""
    if not env.seats:
        return ([group] for group in groups)
    return (list(draw) for _, draw in groupby(groups, lambda group: (group.split, group.draw, group.item_id)))


async def _rescore_seats(
    env: Environment, draw: list[Group], item: Any, stats: RescoreStats, slots: asyncio.Semaphore
) -> list[Group]:
    """Score the episodes of a draw again, each by a replay of its seats' answers."""
    tools = {name for group in draw for name in group.tools}

    async def replay(recorded: Mapping[str, Rollout]) -> dict[str, Rollout]:
        async with slots:
            return await replay_episode(env, item, recorded, tools)

    recorded = episodes(rollout for group in draw for rollout in group.rollouts)
    async with asyncio.TaskGroup() as work:
        tasks = {
            name: work.create_task(replay(seats))
            for name, seats in recorded.items()
            if not any(map(_failed_before_reward, seats.values()))
        }
    rescored = []
    for group in draw:
        rollouts = []
        for rollout in group.rollouts:
            task = tasks.get(str(rollout.metadata["episode"]))
            new = None if task is None else task.result().get(str(rollout.seat))
            rollouts.append(rollout if new is None else _with_score_of(rollout, new))
            if new is not None:
                stats.replayed += 1
                for call in replayed_calls(rollout, new):
                    stats.add_call(group, rollout, call)
        rescored.append(_updated(env, group, rollouts, stats))
    return rescored


def _with_score_of(rollout: Rollout, new: Rollout) -> Rollout:
    return replace(
        rollout,
        score=new.score,
        failure=new.failure,
        components=new.components,
        turn_scores=new.turn_scores,
        notes=new.notes,
        withheld=None,
    )


def _failed_before_reward(rollout: Rollout) -> bool:
    return rollout.stop_reason is None or (
        rollout.failure is not None and rollout.failure.whose not in (FailureSource.VERIFIER, FailureSource.JUDGE)
    )


async def _rescore_group(
    env: Environment,
    draw: list[Group],
    item: Any,
    source: RescoreSource,
    stats: RescoreStats,
    slots: asyncio.Semaphore,
) -> list[Group]:
    [group] = draw

    async def rescore(rollout: Rollout) -> FinishedRollout:
        async with slots:
            return await _rescore_rollout(env, group, item, rollout, source, stats)

    async with asyncio.TaskGroup() as work:
        tasks = [work.create_task(rescore(rollout)) for rollout in group.rollouts]
    return [_updated(env, group, await apply_group_rewards(env, item, [task.result() for task in tasks]), stats)]


def _updated(env: Environment, group: Group, rollouts: Sequence[Rollout], stats: RescoreStats) -> Group:
    """The group with its rescored rollouts, by the rules and the code of now."""
    withheld = None
    if group.split != "eval":
        rollouts, withheld = env.group_rules().apply(rollouts)
    stats.groups += 1
    for old, new in zip(group.rollouts, rollouts, strict=True):
        stats.add(group, old, new)
    own = provenance(env)
    updated = replace(group.provenance, environment_hash=own.environment_hash, versions=own.versions)
    return replace(group, rollouts=tuple(rollouts), withheld=withheld, provenance=updated)


async def _rescore_rollout(
    env: Environment, group: Group, item: Any, rollout: Rollout, source: RescoreSource, stats: RescoreStats
) -> FinishedRollout:
    result = recorded_result(rollout)
    if _failed_before_reward(rollout):
        return FinishedRollout(rollout, result)
    try:
        result.reward = await _compute_reward(env, group, item, rollout, result, source, stats)
    except Exception as error:  # noqa: BLE001 (every error becomes a Failure, as in a rollout)
        unscored = replace(rollout, score=None, failure=failure_of(error), components={}, turn_scores=(), withheld=None)
        return FinishedRollout(unscored, result)
    cleared = replace(rollout, score=result.reward.score, failure=None, withheld=None)
    return FinishedRollout(with_reward(cleared, result.reward), result)


async def _compute_reward(
    env: Environment,
    group: Group,
    item: Any,
    rollout: Rollout,
    result: AgentResult,
    source: RescoreSource,
    stats: RescoreStats,
) -> Reward:
    # The record has the state as JSON, if at all; the reward may read the object.
    stateful = env.overrides("initial_state")
    if source is not RescoreSource.REPLAY and not stateful:
        async with fresh_session(env, item, rollout.seed) as session:
            session.pool = locked = LockedPool()
            reward: Reward | None = None
            try:
                reward = await compute_rollout_reward(env, item, result, session.task_id, session)
            except HermesRLError:
                if not locked.was_requested:
                    raise
        # A reward may catch the locked pool's error and return a score anyway; that score is discarded.
        if reward is not None and not locked.was_requested:
            stats.from_transcript += 1
            return reward
    if source is RescoreSource.TRANSCRIPT:
        needed = "may read the state" if stateful else "accesses the sandbox"
        raise SandboxError("transcript", f"the reward {needed}; rescore with --from replay")
    async with fresh_session(env, item, rollout.seed) as session:
        async for call in replay_calls(env, rollout, group.tools, session):
            stats.add_call(group, rollout, call)
        await session.end_policy()
        take_step_rewards(env, session, result)
        stats.replayed += 1
        return await compute_rollout_reward(env, item, result, session.task_id, session)


def items_by_id(env: Environment) -> dict[str, Any]:
    """The original items: a record contains only the JSON form of a tuple or a dataclass."""
    return {env.item_id(item): item for item in (*(env.train_items() or ()), *env.eval_items())}
