"""Groups: the rollouts of one item run together, and what each is told before it starts.

A failed rollout stays in its group without a score; it never takes the others with it. Seeds depend only on the run's
seed, the item and the rollout's place, so a run repeats whatever order its groups end in.
"""

import asyncio
import hashlib
import inspect
import platform
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from hermes_rl.environment.contract import Environment
from hermes_rl.environment.rollouts import RolloutPlan, run_rollout
from hermes_rl.trajectory import Group, Provenance
from hermes_rl.version import __version__

SEED_RANGE = 2**31


async def run_group(
    env: Environment, item: Any, *, size: int, split: str = "train", temperature: float | None = None
) -> Group:
    """Run `size` rollouts of an item at once, all with the same tools."""
    schemas, names = env.group_tools()
    item_id = env.item_id(item)
    plans = [
        RolloutPlan(
            item=item,
            item_id=item_id,
            index=index,
            seed=rollout_seed(env.config.seed, split, item_id, index),
            tool_schemas=schemas,
            valid_tool_names=names,
            temperature=env.config.agent_temperature if temperature is None else temperature,
            split="eval" if split == "eval" else "train",
        )
        for index in range(size)
    ]
    async with asyncio.TaskGroup() as rollouts:
        tasks = [rollouts.create_task(run_rollout(env, plan)) for plan in plans]
    return Group(
        item_id=item_id,
        item=item,
        rollouts=tuple(task.result() for task in tasks),
        provenance=provenance(env),
        tools=tuple(sorted(names)),
        split=split,
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )


def rollout_seed(run_seed: int, split: str, item_id: str, index: int) -> int:
    digest = hashlib.sha256(f"{run_seed}/{split}/{item_id}/{index}".encode()).digest()
    return int.from_bytes(digest[:8]) % SEED_RANGE


def content_id(item: Any) -> str:
    """An item's id: the hash of its canonical JSON."""
    options = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    return hashlib.sha256(orjson.dumps(item, default=str, option=options)).hexdigest()[:16]


def provenance(env: Environment) -> Provenance:
    return Provenance(
        environment=env.display_name(),
        environment_hash=_source_hash(type(env)),
        model=", ".join(sorted({config.model_name for config in env.server.configs})),
        versions={"hermes-rl": __version__, "python": platform.python_version()},
    )


@cache
def _source_hash(cls: type) -> str:
    """The hash of the file that defines the environment; "" for a class that has none."""
    try:
        source = inspect.getsourcefile(cls)
        return hashlib.sha256(Path(source).read_bytes()).hexdigest()[:16] if source else ""
    except (OSError, TypeError):
        return ""
