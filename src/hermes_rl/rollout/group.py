"""Run the rollouts of one item as a group: plan them, retry failures, apply group rewards and filters.

A rollout that still fails after its retries stays in the group without a score and does not affect the others. Seeds
depend only on the run's seed, the draw, the item and the rollout's index, so results do not depend on completion order.
"""

import copy
import hashlib
import inspect
import platform
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

from hermes_rl import tracing
from hermes_rl.agent.result import AgentResult
from hermes_rl.core.author_code import describe_error
from hermes_rl.core.errors import ConfigError, Failure, InfrastructureError, VerifierError
from hermes_rl.core.failure_causes import Evidence, evidence_for
from hermes_rl.core.messages import tool_name
from hermes_rl.core.observation import observe, observing
from hermes_rl.core.trajectory import Group, Provenance, Reward, Rollout, Usage, merge_schemas, validate_reward
from hermes_rl.rewards.sync_bridge import bridged
from hermes_rl.rollout.audits import GroupAudits, group_audits
from hermes_rl.rollout.custom_rollouts import (
    CollectedRows,
    Parts,
    PlanSource,
    call_author,
    current_plans,
    own_rollout,
    run_custom_rollout,
)
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.external.program import with_agent
from hermes_rl.rollout.group_strategy import FlatGroup, GroupStrategy, all_at_once, group_strategy
from hermes_rl.rollout.rollout import FinishedRollout, RolloutPlan, Start, check_turns, run_rollout
from hermes_rl.rollout.sampler import content_id
from hermes_rl.rollout.seats import SeatedEnvironment, run_episode, seat_plan
from hermes_rl.version import __version__

SEED_RANGE = 2**31
METHOD = "collect_trajectories"
# Seconds a whole group gets beyond all attempts of its rollouts.
GROUP_GRACE = 60.0
# Settings that affect how a run operates but not what a rollout contains; `config_hash` covers all others.
OPERATIONAL_FIELDS = frozenset(
    "max_num_workers max_eval_workers max_num_workers_per_node steps_per_eval eval_handling eval_limit_ratio "
    "inference_weight batch_size max_batches_offpolicy use_wandb rollout_server_url total_steps wandb_name "
    "num_rollouts_to_keep num_rollouts_per_group_for_logging data_path_to_save_groups data_dir_to_save_evals "
    "min_items_sent_before_logging include_messages min_batch_allocation tool_pool_size max_live_sandboxes "
    "max_starting_sandboxes sandbox_start_timeout eval_size token_limit spend_limit time_limit metric_sinks shard "
    "rollout_retries rollout_server_token stop_timeout serve_dir evaluation_only concurrency "
    "engines_file agent_artifacts agent_token gateway_host gateway_port gateway_url audit audit_share".split()
)


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Everything fixed before a group starts."""

    item: Any
    item_id: str
    size: int
    split: str
    draw: int
    temperature: float
    run_seed: int
    tool_schemas: Sequence[dict[str, Any]]
    tool_names: frozenset[str]
    start: Start | None = None
    audits: GroupAudits | None = None

    def rollout(self, index: int) -> RolloutPlan:
        return RolloutPlan(
            item=self.item,
            item_id=self.item_id,
            index=index,
            seed=rollout_seed(self.run_seed, self.split, self.item_id, index, self.draw),
            tool_schemas=self.tool_schemas,
            valid_tool_names=self.tool_names,
            temperature=self.temperature,
            split="eval" if self.split == "eval" else "train",
            start=self.start,
            audits=self.audits,
        )


_current_group: ContextVar[GroupPlan | None] = ContextVar("current_group", default=None)


def plan_group(
    env: Environment,
    item: Any,
    *,
    size: int,
    split: str = "train",
    temperature: float | None = None,
    draw: int | None = None,
) -> GroupPlan:
    item_id = env.item_id(item)
    schemas, names = env.group_tools(f"{split}/{item_id}" if split == "eval" else draw)
    return GroupPlan(
        item=item,
        item_id=item_id,
        size=size,
        split=split,
        draw=draw or 0,
        temperature=env.config.agent_temperature if temperature is None else temperature,
        run_seed=env.config.seed,
        tool_schemas=schemas,
        tool_names=frozenset(names),
        audits=None if split == "eval" else group_audits(env, size, f"{env.config.seed}/{draw or 0}/{item_id}"),
    )


async def run_groups(env: Environment, plan: GroupPlan) -> list[Group]:
    """Run the rollouts of an item: one group, one for each seat, or those of the author's `collect_trajectories`."""
    _strategy(env, plan)
    if env.seats:
        return await _run_seat_groups(cast("SeatedEnvironment", env), plan)
    if env.overrides(METHOD):
        return await _run_custom_groups(env, plan)
    return [await _run_own_group(env, plan)]


async def run_group(
    env: Environment,
    item: Any,
    *,
    size: int,
    split: str = "train",
    temperature: float | None = None,
    draw: int | None = None,
) -> Group:
    """Run `size` rollouts of an item at once, all with the same tools.

    If there are several groups, of seats or from the environment's own `collect_trajectories`, they are merged into
    one: for evaluations, which compare no rollouts.
    """
    if env.seats and split != "eval":
        raise ConfigError(f"{env.display_name()} has a group for each seat: call collect_groups")
    plan = plan_group(env, item, size=size, split=split, temperature=temperature, draw=draw)
    first, *others = await run_groups(env, plan)
    if not others:
        return first
    rollouts = [rollout for group in (first, *others) for rollout in group.rollouts]
    return replace(
        first,
        rollouts=tuple(replace(rollout, index=at) for at, rollout in enumerate(rollouts)),
        # Seats may have different tools.
        tools=tuple(sorted(plan.tool_names)),
        tool_schemas=tuple(plan.tool_schemas),
    )


async def _run_own_group(env: Environment, plan: GroupPlan) -> Group:
    if env.seats:
        raise ConfigError(f"{env.display_name()} has a group for each seat: call collect_groups")
    with tracing.group_span(_span_attributes(env, plan)) as span:
        made = await _strategy(env, plan).rollouts(env, plan, partial(_run_with_retries, env))
        finished = charge_by_siblings(env, made)
        rollouts = await apply_group_rewards(env, plan.item, finished)
        group = _make_group(env, plan, rollouts)
        if span.on:
            span.set_attributes(scored=len(group.scored), withheld=group.withheld)
    return group


def _strategy(env: Environment, plan: GroupPlan) -> GroupStrategy:
    """How the rollouts are made. Those of an evaluation are independent, and so are forks of a recorded one."""
    return FlatGroup() if plan.split == "eval" or plan.start is not None else group_strategy(env)


async def _run_seat_groups(env: SeatedEnvironment, plan: GroupPlan) -> list[Group]:
    """Play `size` episodes: the rollouts of each seat are a group, since only they can be compared with each other."""
    with tracing.group_span(_span_attributes(env, plan)):
        episodes = await all_at_once(_play_with_retries(env, plan.rollout(index)) for index in range(plan.size))
    groups = []
    for part, seat in enumerate(env.seats):
        finished = charge_by_siblings(env, [episode[seat] for episode in episodes if seat in episode])
        if finished:
            seated = seat_plan(env, plan.rollout(0), seat)
            own = replace(
                plan,
                tool_names=frozenset(seated.valid_tool_names),
                tool_schemas=[dict(schema) for schema in seated.tool_schemas],
            )
            groups.append(_make_group(env, own, [rollout for rollout, _ in finished], part=part))
    return groups


def _span_attributes(env: Environment, plan: GroupPlan) -> dict[str, Any]:
    name = group_id(config_hash(env), plan.split, plan.draw, plan.item_id)
    return {"group": name, "item": plan.item_id, "split": plan.split, "draw": plan.draw, "rollouts": plan.size}


async def collect_rollout(env: Environment, item: Any) -> Rollout:
    """One of our rollouts, for `super().collect_trajectory(item)` or a direct call."""
    if env.seats:
        raise ConfigError(f"{env.display_name()} has a rollout for each seat: call collect_groups")
    plans = current_plans.get()
    if plans is None:
        return (await own_rollout(env, plan_group(env, item, size=1).rollout(0))).rollout
    return (await own_rollout(env, plans.take(item))).rollout


async def collect_own_group(env: Environment, item: Any) -> Group:
    """A group of rollouts, for `super().collect_trajectories(item)` or a direct call."""
    plan = _current_group.get() or plan_group(env, item, size=env.config.group_size)
    with observing():
        group = await _run_own_group(env, replace(plan, item=item))
    for rollout in group.rollouts:
        observe(FinishedRollout(rollout, AgentResult(messages=rollout.messages, stop_reason=rollout.stop_reason)))
    return group


async def _run_custom_groups(env: Environment, plan: GroupPlan) -> list[Group]:
    """The groups of the environment's own `collect_trajectories`; a failed call is retried like a rollout."""
    retries, tries, outage = env.group_rules().retries, 1, env.server.outage
    if plan.split == "eval":
        # The author's code reads the number of rollouts and the temperature from its configuration.
        env = copy.copy(env)
        env.config = env.config.model_copy(update={"group_size": plan.size, "agent_temperature": plan.temperature})
        env.set_group_tools(list(plan.tool_schemas), set(plan.tool_names))
    seconds = env.config.worker_timeout * (1 + retries.count) + GROUP_GRACE
    with tracing.group_span(_span_attributes(env, plan)):
        while True:
            await outage.over()
            began = time.monotonic()
            token = _current_group.set(plan)
            try:
                collected = await call_author(
                    env, env.collect_trajectories, plan.item, PlanSource(plan.rollout), seconds
                )
            finally:
                _current_group.reset(token)
            # Author code may have caught an OutageError.
            await outage.over()
            if await outage.caused(collected.failure, began):
                continue
            if not retries.should_retry(collected.failure, tries):
                break
            tries += 1
    parts = collected.parts
    if collected.backlog and plan.split != "eval":
        env.add_to_backlog(collected.backlog)
    groups = [_custom_rollouts(env, plan, group, parts) for group in collected.groups]
    if collected.failure is not None or not groups:
        kept = parts.leftovers() if collected.failure is None else []
        failed = parts.unfinished
        groups = [kept or [failed(plan.rollout(at), collected.failure, METHOD).rollout for at in range(plan.size)]]
    else:
        groups[0] += parts.leftovers()
    if groups[0]:
        first = groups[0][0]
        groups[0][0] = replace(first, usage=first.usage + parts.unattributed_usage())
    overrides = [group.overrides for group in collected.groups] or [{}]
    return [
        _make_group(env, plan, rollouts, part=part, overrides=overrides[part]) for part, rollouts in enumerate(groups)
    ]


def _custom_rollouts(env: Environment, plan: GroupPlan, group: CollectedRows, parts: Parts) -> list[Rollout]:
    return [parts.finish(env, plan.rollout(index), row).rollout for index, row in enumerate(group.rows)]


def _make_group(
    env: Environment,
    plan: GroupPlan,
    rollouts: Sequence[Rollout],
    part: int = 0,
    overrides: Mapping[str, Any] | None = None,
) -> Group:
    source = replace(provenance(env), image_digest=_image_digest(env, plan.item))
    if plan.audits is not None:
        rollouts = plan.audits.keep_chosen(rollouts)
    withheld = None
    if plan.split != "eval":
        rollouts, withheld = env.group_rules().apply(rollouts)
    schemas, rollouts = merge_schemas(plan.tool_schemas, rollouts)
    return Group(
        item_id=plan.item_id,
        item=plan.item,
        rollouts=tuple(replace(rollout, index=at) for at, rollout in enumerate(rollouts)),
        provenance=source,
        tools=tuple(sorted(plan.tool_names or map(tool_name, schemas))),
        tool_schemas=tuple(schemas),
        split=plan.split,
        id=group_id(source.config_hash, plan.split, plan.draw, plan.item_id, part),
        draw=plan.draw,
        withheld=withheld,
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        overrides=overrides or {},
    )


def group_id(config_hash: str, split: str, draw: int, item_id: str, part: int = 0) -> str:
    """`part` tells several groups of one draw apart."""
    return content_id([config_hash, split, draw, item_id, *([part] if part else [])])


def rollout_seed(run_seed: int, split: str, item_id: str, index: int, draw: int = 0) -> int:
    digest = hashlib.sha256(f"{run_seed}/{split}/{draw}/{item_id}/{index}".encode()).digest()
    return int.from_bytes(digest[:8]) % SEED_RANGE


def provenance(env: Environment) -> Provenance:
    return Provenance(
        environment=env.display_name(),
        environment_hash=source_hash(type(env)),
        model=", ".join(sorted({config.model_name for config in env.server.configs})),
        versions={"hermes-rl": __version__, "python": platform.python_version()},
        config_hash=config_hash(env),
        dataset_hash=env.dataset_hash,
    )


def config_hash(env: Environment) -> str:
    """Hash of the settings that affect rollouts; workers, paths and budgets are excluded."""
    settings = env.config.model_dump(mode="json", exclude=set(OPERATIONAL_FIELDS))
    models = sorted(config.model_name for config in env.server.configs)
    return content_id([env.display_name(), settings, models])


@cache
def source_hash(cls: type) -> str:
    """The hash of the file that defines the environment; "" for a class that has none."""
    try:
        source = inspect.getsourcefile(cls)
        return hashlib.sha256(Path(source).read_bytes()).hexdigest()[:16] if source else ""
    except (OSError, TypeError):
        return ""


async def _run_with_retries(env: Environment, plan: RolloutPlan) -> FinishedRollout:
    run = run_custom_rollout if env.overrides("collect_trajectory") else run_rollout

    async def attempt() -> dict[str, FinishedRollout]:
        return {"": await run(env, plan)}

    return (await _with_retries(env, attempt))[""]


async def _play_with_retries(env: SeatedEnvironment, plan: RolloutPlan) -> dict[str, FinishedRollout]:
    return await _with_retries(env, partial(run_episode, env, plan))


async def _with_retries(
    env: Environment, attempt: Callable[[], Awaitable[dict[str, FinishedRollout]]]
) -> dict[str, FinishedRollout]:
    """Make rollouts that fail together, again when the rules allow; earlier failures go into the first's metadata.

    A try that an outage ended does not count as one, and the next begins when the outage is over.
    """
    retries, outage = env.group_rules().retries, env.server.outage
    earlier: list[str] = []
    earlier_usage, tries = Usage(), 1
    while True:
        await outage.over()
        began = time.monotonic()
        made = await attempt()
        name, (rollout, result) = next(iter(made.items()))
        if not await outage.caused(rollout.failure, began):
            if not retries.should_retry(rollout.failure, tries):
                break
            tries += 1
        earlier.append(str(rollout.failure))
        earlier_usage = sum((each.rollout.usage for each in made.values()), earlier_usage)
    if earlier:
        attempts = {"earlier_failures": earlier, "earlier_usage": asdict(earlier_usage)}
        made[name] = FinishedRollout(replace(rollout, metadata={**rollout.metadata, **attempts}), result)
    return made


def charge_by_siblings(env: Environment, finished: Sequence[FinishedRollout]) -> list[FinishedRollout]:
    """A reward that scored others of the group works: one that raised on this work gives the failing score.

    If it scored none, it may be broken. Then nothing is scored, and there is nothing to train on either way.
    """
    if not any(rollout.scored for rollout, _ in finished):
        return list(finished)
    return [_charge(env, *one) for one in finished]


def _charge(env: Environment, rollout: Rollout, result: AgentResult) -> FinishedRollout:
    failure = rollout.failure
    if failure is None or rollout.stop_reason is None or evidence_for(failure) is not Evidence.CONTROL:
        return FinishedRollout(rollout, result)
    reward = result.reward = Reward(env.config.failing_score)
    charged = {**rollout.metadata.get("charged", {}), str(failure): failure.message}
    metadata = {**rollout.metadata, "charged": charged}
    return FinishedRollout(replace(rollout, score=reward.score, failure=None, metadata=metadata), result)


async def apply_group_rewards(env: Environment, item: Any, finished: Sequence[FinishedRollout]) -> list[Rollout]:
    """Replace the scored rollouts' rewards with those of `compute_group_rewards`, if it returns any."""
    rollouts = [rollout for rollout, _ in finished]
    scored = [index for index, rollout in enumerate(rollouts) if rollout.scored]
    if not scored:
        return rollouts
    try:
        with env.running():
            returned = await bridged(env.compute_group_rewards(item, [finished[index].result for index in scored]))
        rewards = (
            None if returned is None else _check_count([validate_reward(value) for value in returned], len(scored))
        )
        for index, reward in zip(scored, rewards or (), strict=False):
            check_turns(reward, finished[index].result)
    except InfrastructureError as error:
        return _without_scores(rollouts, error.failure)
    except Exception as error:  # noqa: BLE001 (author code may raise anything)
        reason = VerifierError("group_raised", f"compute_group_rewards raised {describe_error(error)}")
        return _without_scores(rollouts, reason.failure)
    for index, reward in zip(scored, rewards or (), strict=False):
        rollouts[index] = with_reward(rollouts[index], reward)
    return rollouts


def with_reward(rollout: Rollout, reward: Reward) -> Rollout:
    return replace(
        rollout,
        score=reward.score,
        components=reward.components,
        turn_scores=tuple(reward.turns),
        notes={**rollout.notes, **reward.notes},
    )


def _check_count(rewards: list[Reward], count: int) -> list[Reward]:
    if len(rewards) != count:
        raise VerifierError(
            "group_rewards",
            f"compute_group_rewards returned {len(rewards)} rewards for {count} results; return one for each",
        )
    return rewards


def _without_scores(rollouts: Sequence[Rollout], failure: Failure) -> list[Rollout]:
    """When the group reward fails, no rollout of the group has a score."""
    return [
        replace(rollout, score=None, failure=failure, components={}, turn_scores=()) if rollout.scored else rollout
        for rollout in rollouts
    ]


def _image_digest(env: Environment, item: Any) -> str | None:
    """Digest of the item's image, files and setup; None for the default image or when sandbox_spec fails."""
    try:
        spec = with_agent(env.sandbox_spec(item), env.config)
        return spec.digest if spec.image or spec.baked else None
    except Exception:  # noqa: BLE001 (every rollout of the group has already failed with it)
        return None
