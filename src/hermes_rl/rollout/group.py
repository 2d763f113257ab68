"""Run the rollouts of one item as a group: plan them, retry failures, apply group rewards and filters.

A rollout that still fails after its retries stays in the group without a score and does not affect the others. Seeds
depend only on the run's seed, the draw, the item and the rollout's index, so results do not depend on completion order.
"""

import asyncio
import hashlib
import inspect
import platform
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from hermes_rl import tracing
from hermes_rl.core.author_code import describe_error
from hermes_rl.core.errors import Failure, InfrastructureError, VerifierError
from hermes_rl.core.trajectory import Group, Provenance, Reward, Rollout, Usage, validate_reward
from hermes_rl.rewards.sync_bridge import bridged
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.external.program import with_agent
from hermes_rl.rollout.rollout import FinishedRollout, RolloutPlan, run_rollout
from hermes_rl.rollout.sampler import content_id
from hermes_rl.version import __version__

SEED_RANGE = 2**31
# Settings that affect how a run operates but not what a rollout contains; `config_hash` covers all others.
OPERATIONAL_FIELDS = frozenset(
    "max_num_workers max_eval_workers max_num_workers_per_node steps_per_eval eval_handling eval_limit_ratio "
    "inference_weight batch_size max_batches_offpolicy use_wandb rollout_server_url total_steps wandb_name "
    "num_rollouts_to_keep num_rollouts_per_group_for_logging data_path_to_save_groups data_dir_to_save_evals "
    "min_items_sent_before_logging include_messages min_batch_allocation tool_pool_size max_live_sandboxes "
    "max_starting_sandboxes sandbox_start_timeout eval_size token_limit spend_limit time_limit metric_sinks shard "
    "rollout_retries rollout_server_token stop_timeout serve_dir evaluation_only concurrency "
    "engines_file".split()
)


async def run_group(
    env: Environment,
    item: Any,
    *,
    size: int,
    split: str = "train",
    temperature: float | None = None,
    draw: int | None = None,
) -> Group:
    """Run `size` rollouts of an item at once, all with the same tools."""
    item_id = env.item_id(item)
    schemas, names = env.group_tools(f"{split}/{item_id}" if split == "eval" else draw)
    draw = draw or 0
    plans = [
        RolloutPlan(
            item=item,
            item_id=item_id,
            index=index,
            seed=rollout_seed(env.config.seed, split, item_id, index, draw),
            tool_schemas=schemas,
            valid_tool_names=names,
            temperature=env.config.agent_temperature if temperature is None else temperature,
            split="eval" if split == "eval" else "train",
        )
        for index in range(size)
    ]
    source = replace(provenance(env), image_digest=_image_digest(env, item))
    name = group_id(source.config_hash, split, draw, item_id)
    with tracing.group_span({"group": name, "item": item_id, "split": split, "draw": draw, "rollouts": size}) as span:
        async with asyncio.TaskGroup() as work:
            tasks = [work.create_task(_run_with_retries(env, plan)) for plan in plans]
        rollouts: Sequence[Rollout] = await apply_group_rewards(env, item, [task.result() for task in tasks])
        withheld = None
        if split != "eval":
            rollouts, withheld = env.group_rules().apply(rollouts)
        if span.on:
            span.set_attributes(scored=sum(rollout.scored for rollout in rollouts), withheld=withheld)
    return Group(
        item_id=item_id,
        item=item,
        rollouts=tuple(rollouts),
        provenance=source,
        tools=tuple(sorted(names)),
        tool_schemas=tuple(schemas),
        split=split,
        id=name,
        draw=draw,
        withheld=withheld,
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )


def group_id(config_hash: str, split: str, draw: int, item_id: str) -> str:
    return content_id([config_hash, split, draw, item_id])


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
    """Run a rollout, retrying it when the rules allow; earlier failures go into its metadata."""
    retries = env.group_rules().retries
    earlier: list[str] = []
    earlier_usage = Usage()
    while True:
        rollout, result = await run_rollout(env, plan)
        if not retries.should_retry(rollout.failure, len(earlier) + 1):
            break
        earlier.append(str(rollout.failure))
        earlier_usage += rollout.usage
    if earlier:
        attempts = {"earlier_failures": earlier, "earlier_usage": asdict(earlier_usage)}
        rollout = replace(rollout, metadata={**rollout.metadata, **attempts})
    return FinishedRollout(rollout, result)


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
    except InfrastructureError as error:
        return _without_scores(rollouts, error.failure)
    except Exception as error:  # noqa: BLE001 (author code may raise anything)
        reason = VerifierError("group_raised", f"compute_group_rewards raised {describe_error(error)}")
        return _without_scores(rollouts, reason.failure)
    for index, reward in zip(scored, rewards or (), strict=False):
        rollouts[index] = with_reward(rollouts[index], reward)
    return rollouts


def with_reward(rollout: Rollout, reward: Reward) -> Rollout:
    return replace(rollout, score=reward.score, components=reward.components, turn_scores=reward.turns)


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
