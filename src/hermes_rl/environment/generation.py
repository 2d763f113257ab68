"""`process`: groups made one beside the other and written to a JSONL file as they finish, failed rollouts included.

A group is in the file whole or not at all. Whatever ended a run, a second one with `resume` makes the draws that are
missing and no other, and the file is then the same set of groups as an uninterrupted run's. One process writes a file
at a time.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hermes_rl.environment.budget import Budget
from hermes_rl.environment.contract import Environment
from hermes_rl.environment.groups import provenance
from hermes_rl.environment.items import Draw
from hermes_rl.environment.metrics import Tally
from hermes_rl.environment.slots import Slots, training_width
from hermes_rl.errors import ConfigError, HermesRLError
from hermes_rl.store.holding import only_writer
from hermes_rl.store.records import RecordWriter, atropos_columns, read_groups, record_of, write_document
from hermes_rl.trajectory import Group, Provenance

ANEW = "with --overwrite or another --env.data_path_to_save_groups"


async def generate_groups(env: Environment, path: Path, *, resume: bool = False) -> Tally:
    """Make `total_steps` groups, or as many as there are items or the budget allows.

    An error that is no rollout's own ends the run; the groups in flight are finished and kept before it is raised.
    """
    budget = Budget.of(env.config, env.server.configs)
    tally = Tally(budget=budget, pass_score=env.config.pass_score)
    with only_writer(path, "--env.data_path_to_save_groups"):
        done = finished_draws(env, path, tally) if resume else {}
        store_split(env, path.with_suffix(".split.json"))
        slots = training_slots(env)
        async with slots.watching():
            await _make_missing(env, path, tally, done, slots)
    await env.wandb_log({f"train/{name}": value for name, value in tally.summary().items()} | slots.figures())
    return tally


async def _make_missing(env: Environment, path: Path, tally: Tally, done: Mapping[int, str], slots: Slots) -> None:
    total = env.config.total_steps
    errors: list[Exception] = []
    with RecordWriter(path) as writer, env.progress("process", total, tally, done=len(done)) as progress:

        async def one(draw: Draw) -> None:
            try:
                group = await env.collect_group(draw.item, draw.number)
                await _keep(env, group, writer, tally)
                progress.advance()
            except Exception as error:  # noqa: BLE001 (whatever it is, the groups in flight are kept)
                errors.append(error)
            finally:
                slots.release()

        async with asyncio.TaskGroup() as groups:
            for _ in range(total - len(done)):
                await slots.acquire()
                tally.limit = tally.budget.reached()
                if tally.limit or errors:
                    break
                try:
                    draw = await env.next_draw(done)
                except Exception as error:  # noqa: BLE001 (get_next_item is the author's)
                    errors.append(error)
                    break
                if draw is None:
                    break
                groups.create_task(one(draw))
    if tally.limit:
        # The groups in flight have added to it since.
        tally.limit = tally.budget.reached()
    if errors:
        raise errors[0]


def finished_draws(env: Environment, path: Path, tally: Tally) -> dict[int, str]:
    """The draws a file already holds, by their item ids, counted in the tally and in the items' pass rates."""
    if not path.exists():
        return {}
    own = provenance(env)
    done: dict[int, str] = {}
    for group in read_groups(path):
        must_match(group.provenance, own, path, ANEW)
        done[group.draw] = group.item_id
        tally.add(group)
        env.pass_rates.add(group)
    return done


def store_split(env: Environment, path: Path) -> None:
    """Which items were held out of this run, for whoever evaluates its policy later."""
    split = {
        "format": "hermes-rl/split/1",
        "environment": env.display_name(),
        "dataset_hash": env.dataset_hash,
        "held_out": sorted(env.held_out_ids),
    }
    write_document(path, split)


def training_slots(env: Environment) -> Slots:
    return Slots(env.server, training_width(env.config, len(env.server.configs)))


def must_match(theirs: Provenance, own: Provenance, path: Path, anew: str) -> None:
    """Groups of two settings, rewards or datasets in one file could not be told apart later."""
    changed: Mapping[str, tuple[object, object]] = {
        "the settings or the model": (theirs.config_hash, own.config_hash),
        "the environment's file": (theirs.environment_hash, own.environment_hash),
        "the dataset": (theirs.dataset_hash, own.dataset_hash),
    }
    for what, (before, now) in changed.items():
        if before != now:
            raise ConfigError(
                f"{path} cannot be resumed: {what} changed since it was written. Start anew {anew}; if only the reward "
                "changed, `hermes-rl rescore` scores the old groups again"
            )


def append_group(writer: RecordWriter, group: Group) -> None:
    """Write a group; HermesRLError that says how to go on when the disk refuses it."""
    try:
        writer.write(record_of(group))
    except OSError as error:
        raise HermesRLError(
            f"{writer.path} cannot be written: {error.strerror}; make room for it and go on with --resume"
        ) from error


async def _keep(env: Environment, group: Group, writer: RecordWriter, tally: Tally) -> None:
    append_group(writer, group)
    tally.add(group)
    await note_group(env, group, atropos_columns(group) if group.scored else None)


async def note_group(env: Environment, group: Group, columns: dict[str, Any] | None) -> None:
    """Let the environment learn of a finished group; `columns` is Atropos' form of its scored rollouts, if any."""
    env.pass_rates.add(group)
    env.note_tool_errors(group)
    if columns is not None:
        await env.add_rollouts_for_wandb(columns, group.item)
