"""Fork a recorded rollout: rebuild its sandbox and state at a turn by replaying the calls, then let a model go on.

Always true: a fork begins only where every replayed result, and the recorded state, equal the record. What differs by
nature (times, process ids) an environment declares as patterns in `replay_noise`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import Group, Rollout
from hermes_rl.evaluation.rescore import items_by_id
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.group import plan_group, run_groups
from hermes_rl.rollout.rebuild import past_turns, rebuild
from hermes_rl.rollout.rollout import Start
from hermes_rl.rollout.sampler import content_id


@dataclass(frozen=True, slots=True)
class Fork:
    """What to fork: the model answers again from `turn` on, counted from 1; `edit` replaces the message before it."""

    rollout: int
    turn: int
    count: int = 1
    edit: str | None = None
    seed: int = 0


async def fork_rollout(env: Environment, group: Group, fork: Fork) -> Group:
    """`fork.count` new rollouts as one group; ConfigError when the rollout has no such turn."""
    recorded = _rollout(group, fork)
    item = items_by_id(env).get(group.item_id, group.item)
    past = past_turns(recorded, fork.turn, fork.edit)
    start = Start(recorded.seed, past, lambda session: rebuild(env, recorded, group.tools, past, session))
    plan = replace(
        plan_group(env, item, size=fork.count, split=group.split, draw=group.draw),
        run_seed=int(content_id([fork.seed, group.id, fork.rollout, fork.turn, fork.edit])[:8], 16),
        tool_names=frozenset(group.tools),
        start=start,
    )
    (forked,) = await run_groups(env, plan)
    source = {"group": group.id, "rollout": fork.rollout, "turn": fork.turn}
    source |= {"edit": fork.edit} if fork.edit is not None else {}
    rollouts = tuple(replace(rollout, metadata={**rollout.metadata, "fork": source}) for rollout in forked.rollouts)
    return replace(forked, rollouts=rollouts, id=content_id([forked.id, fork.seed, source]))


def _rollout(group: Group, fork: Fork) -> Rollout:
    if not 0 <= fork.rollout < len(group.rollouts):
        raise ConfigError(f"--rollout {fork.rollout}: group {group.id} has rollouts 0 to {len(group.rollouts) - 1}")
    rollout = group.rollouts[fork.rollout]
    if "program" in rollout.metadata:
        raise ConfigError("rollouts of an external agent cannot be continued; fork a rollout of the built-in loop")
    if rollout.seat is not None:
        raise ConfigError("the rollout is one seat of several; only rollouts of one agent can be forked")
    return rollout


def fork_summary(source: Rollout, forked: Group) -> Mapping[str, Any]:
    """The scores of the forks beside that of the original, as JSON."""
    failures = [str(one.failure) for one in forked.rollouts if one.failure is not None]
    return {"group": forked.id, "recorded_score": source.score, "scores": forked.scores, "failures": failures}
