"""`process`: generate groups concurrently and append each to a JSONL file when it finishes, failed rollouts included.

A group is written whole or not at all. However a run ended, `resume` generates exactly the missing draws, and again
those that an outage spoiled, so the file then holds the same groups as an uninterrupted run. Only one process writes a
file at a time.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from hermes_rl.console.live_display import write_line
from hermes_rl.core.author_code import author_line, describe_error
from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.file_lock import exclusive_lock
from hermes_rl.core.trajectory import Group, Provenance
from hermes_rl.rollout.budget import Budget
from hermes_rl.rollout.concurrency import Slots, training_concurrency
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.group import provenance
from hermes_rl.rollout.metrics import RolloutCounts
from hermes_rl.rollout.resume import set_aside_failed
from hermes_rl.rollout.sampler import Draw
from hermes_rl.store.records import RecordWriter, atropos_columns, group_to_record, read_groups, write_document

OPTION = "--env.data_path_to_save_groups"
START_OVER = f"with --overwrite or another {OPTION}"


async def generate_groups(env: Environment, path: Path, *, resume: bool = False) -> RolloutCounts:
    """Generate `total_steps` groups, or fewer when items or budget run out.

    An error outside a rollout ends the run; the groups in flight finish and are written before it is raised.
    """
    budget = Budget.from_config(env.config, env.server.configs)
    tally = RolloutCounts(budget=budget, pass_score=env.config.pass_score)
    with ExitStack() as locks:
        locks.enter_context(exclusive_lock(path, OPTION))
        # The file that replaces it must be locked before it does.
        relock = partial(_lock, locks)
        done = finished_draws(env, path, tally, relock) if resume else {}
        budget.start(env.server.meter)
        store_split(env, path.with_suffix(".split.json"))
        slots = training_slots(env)
        async with slots.adjusting():
            await _generate_missing(env, path, tally, done, slots)
    await log_metrics(env, {f"train/{name}": value for name, value in tally.summary().items()} | slots.metrics())
    return tally


async def _generate_missing(
    env: Environment, path: Path, tally: RolloutCounts, done: Mapping[int, str], slots: Slots
) -> None:
    total = env.config.total_steps
    errors: list[Exception] = []
    with RecordWriter(path) as writer, env.progress("process", total, tally, done=len(done)) as progress:

        async def generate(draw: Draw) -> None:
            try:
                groups = await env.collect_groups(draw.item, draw.number)
                append_groups(writer, groups)
                for group in groups:
                    await _count_group(env, group, tally)
                env.tools.check()
                progress.advance()
            except Exception as error:  # noqa: BLE001 (the groups in flight are written first)
                errors.append(error)
            finally:
                slots.release()

        left = total - len(done)
        running: set[asyncio.Task[None]] = set()
        while left > 0 and not (tally.limit or errors):
            with tally.budget.enforced(running):
                async with asyncio.TaskGroup() as groups:
                    while left > 0:
                        await slots.acquire()
                        tally.limit = tally.budget.reached_limit()
                        if tally.limit or errors:
                            break
                        try:
                            draw = await env.next_draw(done)
                        except Exception as error:  # noqa: BLE001 (get_next_item is author code)
                            errors.append(error)
                            break
                        if draw is None:
                            slots.release()
                            break
                        left -= 1
                        task = groups.create_task(generate(draw))
                        running.add(task)
                        task.add_done_callback(partial(group_ended, running, tally))
            if not env.has_backlog:
                break
    if tally.limit or tally.dropped:
        # The groups in flight have used more since.
        tally.limit = tally.budget.reached_limit()
    if errors:
        write_line(f"{tally.groups} groups are in {path}; continue with --resume")
        raise errors[0]


def group_ended(running: set["asyncio.Task[None]"], tally: RolloutCounts, task: "asyncio.Task[None]") -> None:
    """Remove it from the groups in flight, and count it if a limit cancelled it."""
    running.discard(task)
    tally.dropped += task.cancelled()


def _lock(locks: ExitStack, path: Path) -> None:
    locks.enter_context(exclusive_lock(path, OPTION))


def finished_draws(
    env: Environment, path: Path, tally: RolloutCounts, replacing: Callable[[Path], None]
) -> dict[int, str]:
    """Item ids of the draws already in the file, by draw number; adds their groups to the tally and rewards."""
    if not path.exists():
        return {}
    current = provenance(env)

    def check(group: Group) -> None:
        require_same_provenance(group.provenance, current, path, START_OVER)

    set_aside_failed(path, env.group_rules().retries, check, replacing)
    done: dict[int, str] = {}
    for group in read_groups(path):
        check(group)
        done[group.draw] = group.item_id
        tally.add(group)
        env.item_rewards.add(group.item_id, group.scores)
    return done


def store_split(env: Environment, path: Path) -> None:
    """Write which items this run held out, for later evaluations of its policy."""
    split = {
        "format": "hermes-rl/split/1",
        "environment": env.display_name(),
        "dataset_hash": env.dataset_hash,
        "held_out": sorted(env.held_out_ids),
    }
    write_document(path, split)


def training_slots(env: Environment) -> Slots:
    return Slots(env.server, training_concurrency(env.config, len(env.server.configs)))


def require_same_provenance(recorded: Provenance, current: Provenance, path: Path, start_over: str) -> None:
    """ConfigError unless the file was written with the same settings, environment code and dataset."""
    changed: Mapping[str, tuple[object, object]] = {
        "the settings or the model": (recorded.config_hash, current.config_hash),
        "the environment's file": (recorded.environment_hash, current.environment_hash),
        "the dataset": (recorded.dataset_hash, current.dataset_hash),
    }
    for what, (before, now) in changed.items():
        if before != now:
            raise ConfigError(
                f"{path} cannot be resumed: {what} changed since it was written. Start over {start_over}; if only the "
                "reward changed, `hermes-rl rescore` scores the old groups again"
            )


def append_groups(writer: RecordWriter, groups: Sequence[Group]) -> None:
    """Append the groups of a draw in one write; HermesRLError with the way to continue when it fails."""
    try:
        writer.write(*map(group_to_record, groups))
    except OSError as error:
        raise HermesRLError(
            f"{writer.path} cannot be written: {error.strerror}; free some space and continue with --resume"
        ) from error


async def _count_group(env: Environment, group: Group, tally: RolloutCounts) -> None:
    tally.add(group)
    env.item_rewards.add(group.item_id, group.scores)
    await report_group(env, group, atropos_columns(group) if group.scored else None)


async def report_group(env: Environment, group: Group, columns: dict[str, Any] | None) -> None:
    """Report to the author's hooks; `columns` holds the scored rollouts in Atropos' format, if there are any."""
    env.note_tool_errors(group)
    if columns is not None:
        await _display(env, "add_rollouts_for_wandb", "rollouts in its display", columns, group.item)


async def log_metrics(env: Environment, metrics: dict[str, Any]) -> None:
    """Log one line of metrics; an error of the author's `wandb_log` is a warning."""
    await _display(env, "wandb_log", "metrics", metrics)


async def _display(env: Environment, hook: str, what: str, *arguments: Any) -> None:
    """Call an author's method that only displays: an error is a warning, once for each line, and loses `what`."""
    try:
        done = getattr(env, hook)(*arguments)
        if inspect.isawaitable(done):
            await done
    except Exception as error:  # noqa: BLE001 (author code may raise anything)
        env.tools.warn_once(
            f"{hook} {type(error).__name__}{author_line(error)}",
            f"{hook} raised {describe_error(error)}; the run goes on without these {what}; "
            "fix the method in your environment",
        )
