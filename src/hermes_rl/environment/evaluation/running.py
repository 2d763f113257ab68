"""Evaluation: `eval_samples` rollouts of each held-out item, kept as they finish, measured at the end.

A finished item is in groups.jsonl, whole, before it counts. Whatever ended a run, a second one with `resume` makes the
items that are missing and no other, and the numbers cover all. metrics.json is written last, so where it stands the
evaluation is finished, or it names the limit that ended it. Two evaluations are never mixed in one folder.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hermes_rl.environment.budget import Budget
from hermes_rl.environment.contract import Environment
from hermes_rl.environment.evaluation.folder import GROUPS, METRICS, SAMPLES, folder_for_a_report
from hermes_rl.environment.evaluation.measuring import Evaluation
from hermes_rl.environment.evaluation.samples import Samples
from hermes_rl.environment.evaluation.table import evaluation_table
from hermes_rl.environment.generation import append_group, must_match
from hermes_rl.environment.groups import OPERATION, provenance, run_group
from hermes_rl.environment.items import content_id
from hermes_rl.environment.metrics import Tally
from hermes_rl.environment.slots import Slots, evaluation_width
from hermes_rl.errors import ConfigError
from hermes_rl.store.records import RecordWriter, read_groups, write_document
from hermes_rl.terminal.screen import console

GREEDY = 0.0
ANEW = "without --resume, or in another --env.data_dir_to_save_evals"
DUPLICATE, BEYOND_LIMIT = "same_as_another", "limit_reached"


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The items of an evaluation by their ids, and how many more were the same as one of them."""

    items: Mapping[str, Any]
    duplicates: int


@dataclass(frozen=True, slots=True)
class Measured:
    """A finished evaluation, on its way to the report."""

    folder: Path
    evaluation: Evaluation
    samples: Samples
    figures: Mapping[str, float]
    """How the engines bore it, where rollouts in flight followed them."""


def held_out(env: Environment) -> HeldOut:
    """The first `eval_size` items that differ; ConfigError when there are none or their ids do not tell them apart."""
    items: dict[str, Any] = {}
    duplicates = 0
    for item in env.eval_items():
        if len(items) == env.config.eval_size:
            break
        item_id = env.item_id(item)
        if item_id not in items:
            items[item_id] = item
        elif content_id(items[item_id]) == content_id(item):
            duplicates += 1
        else:
            raise ConfigError(
                f"two different evaluation items have the id {item_id!r}; let {type(env).__name__}.item_id give each "
                "item one of its own, or do not define it"
            )
    if not items:
        raise ConfigError(
            f"{type(env).__name__} has no evaluation items: define eval_items(), or fill self._eval_items in setup"
        )
    return HeldOut(items, duplicates)


async def evaluate_items(env: Environment, held: HeldOut, folder: Path) -> Measured:
    """Run what `folder` does not hold yet, and measure all of it."""
    config, path = env.config, folder / GROUPS
    budget = Budget.of(config, env.server.configs)
    evaluation = Evaluation(
        items=list(held.items),
        samples=config.eval_samples,
        temperature=eval_temperature(env),
        pass_score=config.pass_score,
        tally=Tally(budget=budget, pass_score=config.pass_score),
    )
    if held.duplicates:
        evaluation.left_out[DUPLICATE] = held.duplicates
    if env.resume_evaluation:
        _count_finished(env, path, evaluation)
    slots = Slots(env.server, evaluation_width(config))
    try:
        async with slots.watching():
            await _run_missing(env, held.items, path, evaluation, slots)
    except asyncio.CancelledError:
        kept = len(evaluation.scores)
        console().print(
            f"{kept} of {len(held.items)} items are kept in {path}; go on with --resume --env.data_dir_to_save_evals "
            f"{folder}",
            soft_wrap=True,
        )
        raise
    not_begun = len(held.items) - len(evaluation.scores)
    if not_begun:
        evaluation.left_out[BEYOND_LIMIT] = not_begun
    return Measured(folder, evaluation, await Samples.of(env, path, held.items), slots.figures())


def eval_temperature(env: Environment) -> float:
    """With one sample the likeliest answer; with several the agent's own distribution, or all would be one sample."""
    return GREEDY if env.config.eval_samples == 1 else float(env.config.agent_temperature)


async def _run_missing(
    env: Environment, items: Mapping[str, Any], path: Path, evaluation: Evaluation, slots: Slots
) -> None:
    config, tally = env.config, evaluation.tally
    errors: list[Exception] = []
    missing = [item for item_id, item in items.items() if item_id not in evaluation.scores]
    with (
        RecordWriter(path) as writer,
        env.progress("evaluate", len(items), tally, done=len(evaluation.scores)) as progress,
    ):

        async def one(item: Any) -> None:
            try:
                group = await run_group(
                    env, item, size=config.eval_samples, split="eval", temperature=evaluation.temperature
                )
                append_group(writer, group)
                evaluation.add(group)
                progress.advance()
            except Exception as error:  # noqa: BLE001 (whatever it is, the items in flight are kept)
                errors.append(error)
            finally:
                slots.release()

        async with asyncio.TaskGroup() as groups:
            for item in missing:
                await slots.acquire()
                tally.limit = tally.budget.reached()
                if tally.limit or errors:
                    break
                groups.create_task(one(item))
    if errors:
        raise errors[0]


def _count_finished(env: Environment, path: Path, evaluation: Evaluation) -> None:
    """Count the groups that an interrupted run left; those of items that are no longer asked for stay in the file."""
    if not path.exists():
        return
    own, asked = provenance(env), set(evaluation.items)
    for group in read_groups(path):
        must_match(group.provenance, own, path, ANEW)
        if group.item_id in asked - evaluation.scores.keys():
            evaluation.add(group)
    evaluation.resumed = len(evaluation.scores)


async def write_evaluation(
    env: Environment,
    metrics: dict[str, Any],
    samples: Sequence[dict[str, Any]],
    *,
    measured: Measured | None,
    task_name: str | None,
    model_name: str | None,
    start_time: float | None,
    end_time: float | None,
    generation_parameters: dict[str, Any] | None,
    verbose: bool,
) -> None:
    """Write the report of the default `evaluate` (`measured`), or of an author's own."""
    end = end_time if end_time is not None else time.time()
    source = provenance(env)
    temperature = measured.evaluation.temperature if measured else GREEDY
    report = {
        "format": "hermes-rl/evaluation/1",
        "task": task_name or env.display_name(),
        "model": model_name or source.model,
        "metrics": metrics,
        "samples": len(samples),
        "seconds": round(end - start_time, 3) if start_time is not None else None,
        "finished_at": datetime.fromtimestamp(end, UTC).isoformat(timespec="seconds"),
        "generation_parameters": generation_parameters
        or {"temperature": temperature, "max_tokens": env.config.max_token_length},
        "provenance": source,
    }
    if measured:
        report |= {"settings": comparable_settings(env), **measured.evaluation.details()}
        await _write(env, report, samples, measured.folder, verbose=verbose)
    else:
        with folder_for_a_report(env) as folder:
            await _write(env, report, samples, folder, verbose=verbose)


def comparable_settings(env: Environment) -> dict[str, Any]:
    """What `compare` tells apart: numbers and switches as they are, all else hashed, as it may hold secrets."""
    settings = env.config.model_dump(mode="json", exclude=set(OPERATION))
    return {
        name: value if value is None or isinstance(value, bool | int | float) else content_id(value)
        for name, value in settings.items()
    }


async def _write(
    env: Environment, report: dict[str, Any], samples: Sequence[dict[str, Any]], folder: Path, *, verbose: bool
) -> None:
    part = folder / f"{SAMPLES}.part"
    part.unlink(missing_ok=True)
    with RecordWriter(part) as writer:
        for sample in samples:
            writer.write(sample)
            # Training may run beside it, and samples may be gigabytes.
            await asyncio.sleep(0)
    part.replace(folder / SAMPLES)
    write_document(folder / METRICS, report)
    env.last_evaluation = {**report, "folder": str(folder)}
    if verbose:
        evaluation_table(report, folder)
