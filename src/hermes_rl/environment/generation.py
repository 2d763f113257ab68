"""`process`: groups made one beside the other and written to a JSONL file as they finish, failed rollouts included."""

import asyncio
from pathlib import Path

from hermes_rl.environment.contract import Environment
from hermes_rl.environment.metrics import Tally
from hermes_rl.store import RecordWriter, record_of
from hermes_rl.store.records import atropos_columns
from hermes_rl.trajectory import Group


async def generate_groups(env: Environment, path: Path) -> Tally:
    """Make `total_steps` groups, or as many as there are items."""
    tally = Tally()
    config = env.config
    slots = asyncio.Semaphore(groups_at_once(env))
    with RecordWriter(path) as writer, env.progress("process", config.total_steps, tally) as progress:

        async def one(item: object) -> None:
            try:
                group = await env.collect_group(item)
            finally:
                slots.release()
            await _keep(env, group, writer, tally)
            progress.advance()

        async with asyncio.TaskGroup() as groups:
            for _ in range(config.total_steps):
                await slots.acquire()
                item = await env.next_item()
                if item is None:
                    break
                groups.create_task(one(item))
    await env.wandb_log({f"train/{name}": value for name, value in tally.summary().items()})
    return tally


def groups_at_once(env: Environment) -> int:
    config = env.config
    if config.max_num_workers > 0:
        return int(config.max_num_workers)
    return int(config.max_num_workers_per_node) * len(env.server.configs)


async def _keep(env: Environment, group: Group, writer: RecordWriter, tally: Tally) -> None:
    writer.write(record_of(group))
    tally.add(group)
    env.note_tool_errors(group)
    if group.scored:
        await env.add_rollouts_for_wandb(atropos_columns(group), group.item)
