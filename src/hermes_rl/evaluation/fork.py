"""Fork a recorded rollout: rebuild its sandbox and state at a turn by replaying the calls, then let a model go on.

Always true: a fork begins only where every replayed result, and the recorded state, equal the record. What differs by
nature (times, process ids) an environment declares as patterns in `replay_noise`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from hermes_rl.agent.result import AgentResult
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import Group, Rollout
from hermes_rl.evaluation.fork_seats import fork_episodes, recorded_episode
from hermes_rl.evaluation.rescore import items_by_id
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.group import plan_group, provenance, run_groups
from hermes_rl.rollout.rebuild import past_turns, rebuild
from hermes_rl.rollout.rollout import Start
from hermes_rl.rollout.sampler import content_id
from hermes_rl.rollout.tree_group import not_replayed


@dataclass(frozen=True, slots=True)
class Fork:
    """What to fork: the model answers again from `turn` on, counted from 1; `edit` replaces the message before it."""

    rollout: int
    turn: int
    count: int = 1
    edit: str | None = None
    seed: int = 0


async def fork_rollout(env: Environment, group: Group, fork: Fork, others: Iterable[Group] = ()) -> Group:
    """`fork.count` new rollouts as one group; ConfigError when the rollout has no such turn.

    `others` are the groups of the same file, or those of the other seats: where there are several agents, the episode
    is repeated with the answers of all of them.
    """
    recorded = _rollout(group, fork)
    item = items_by_id(env).get(group.item_id, group.item)
    past = past_turns(recorded, fork.turn, fork.edit)
    _check_tools(env, past)
    start = Start(recorded.seed, past, lambda session: rebuild(env, recorded, group.tools, past, session))
    plan = replace(
        plan_group(env, item, size=fork.count, split=group.split, draw=group.draw),
        run_seed=int(content_id([fork.seed, group.id, fork.rollout, fork.turn, fork.edit])[:8], 16),
    )
    if recorded.seat is None:
        own = replace(plan, tool_names=frozenset(group.tools), start=start)
        (forked,) = await run_groups(env, own)
    else:
        seated = await fork_episodes(env, plan, recorded, recorded_episode(recorded, others), fork.turn)
        forked = replace(
            group,
            rollouts=tuple(seated),
            provenance=provenance(env),
            withheld=None,
            created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
    source = {"group": group.id, "rollout": fork.rollout, "turn": fork.turn}
    source |= {"edit": fork.edit} if fork.edit is not None else {}
    lost = Counter(use.name for use in past.tool_uses if use.name in not_replayed(env))
    source |= {"not_repeated": dict(lost)} if lost and recorded.seat is None else {}
    rollouts = tuple(replace(rollout, metadata={**rollout.metadata, "fork": source}) for rollout in forked.rollouts)
    return replace(forked, rollouts=rollouts, id=content_id([forked.id, fork.seed, source]))


def _rollout(group: Group, fork: Fork) -> Rollout:
    if not 0 <= fork.rollout < len(group.rollouts):
        raise ConfigError(f"--rollout {fork.rollout}: group {group.id} has rollouts 0 to {len(group.rollouts) - 1}")
    rollout = group.rollouts[fork.rollout]
    if "program" in rollout.metadata:
        raise ConfigError("rollouts of an external agent cannot be continued; fork a rollout of the built-in loop")
    if rollout.seat is not None and fork.edit is not None:
        raise ConfigError("--edit: what a seat is sent follows from the state, so it cannot be edited; leave it out")
    return rollout


def _check_tools(env: Environment, past: AgentResult) -> None:
    """ConfigError for a call that cannot be repeated because the environment has no such tool now."""
    # A call that failed may have named a tool that never was there.
    missing = {use.name for use in past.tool_uses if use.error is None} - env.tools.tools.keys()
    if missing:
        raise ConfigError(
            f"the rollout used {', '.join(sorted(missing))}, which the environment does not have now; pass the "
            "settings it was recorded with, such as --env.enabled_toolsets"
        )


def fork_summary(source: Rollout, forked: Group) -> Mapping[str, Any]:
    """The scores of the forks and that of the original, and why forks have none, as JSON."""
    failures = [f"{one.failure}: {one.failure.message}" for one in forked.rollouts if one.failure is not None]
    return {"group": forked.id, "recorded_score": source.score, "scores": forked.scores, "failures": failures}
