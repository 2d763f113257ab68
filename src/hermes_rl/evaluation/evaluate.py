"""Evaluate `eval_samples` rollouts of each held-out item, saved as they finish.

A finished item is completely written to groups.jsonl before it counts. After an interruption, `resume` runs only the
missing items, and the metrics cover all. metrics.json is written last, so its presence means that the evaluation has
finished, or names the limit that stopped it. Two evaluations are never mixed in one folder.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, overload

from hermes_rl.console.live_display import console
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.keys import stored_secrets
from hermes_rl.core.messages import final_response
from hermes_rl.core.secrets import MIN_SECRET_LENGTH, redact_value
from hermes_rl.core.trajectory import Group, Rollout
from hermes_rl.evaluation.evaluated_policy import evaluated_policy
from hermes_rl.evaluation.metrics import EvaluationCounts
from hermes_rl.evaluation.output_folder import GROUPS, METRICS, SAMPLES, report_folder
from hermes_rl.evaluation.table import evaluation_table
from hermes_rl.rollout.budget import Budget
from hermes_rl.rollout.concurrency import Slots, evaluation_concurrency
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.generate import append_groups, group_ended, require_same_provenance
from hermes_rl.rollout.group import OPERATIONAL_FIELDS, provenance, run_group
from hermes_rl.rollout.metrics import RolloutCounts
from hermes_rl.rollout.resume import set_aside_failed
from hermes_rl.rollout.sampler import content_id
from hermes_rl.sinks.serialize import public_config
from hermes_rl.store.records import RecordWriter, group_from_record, read_groups, rollout_to_record, write_document
from hermes_rl.tools.session import takes_session

# The lines of samples.jsonl are read from groups.jsonl one group at a time: an evaluation may be larger than memory.


class Samples(Sequence[dict[str, Any]]):
    """One sample per rollout, in the order of the items, not of the file."""

    def __init__(
        self, env: Environment, path: Path, items: Mapping[str, Any], offsets: Sequence[tuple[int, int]]
    ) -> None:
        self._env, self._path, self._items = env, path, items
        self._offsets = offsets

    @classmethod
    async def from_file(cls, env: Environment, path: Path, items: Mapping[str, Any]) -> "Samples":
        """Find the offset of each item's group, yielding to the event loop after every line."""
        found: dict[str, tuple[int, int]] = {}
        offset = 0
        with path.open("rb") as lines:
            for line in lines:
                record = fast_json.loads(line)
                found[record["item_id"]] = (offset, len(record["rollouts"]))
                offset += len(line)
                await asyncio.sleep(0)
        return cls(env, path, items, [found[item] for item in items if item in found])

    def __len__(self) -> int:
        return sum(rollouts for _, rollouts in self._offsets)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self._path.open("rb") as lines:
            for offset, _ in self._offsets:
                lines.seek(offset)
                group = group_from_record(fast_json.loads(lines.readline()))
                yield from group_samples(self._env, group, self._items[group.item_id])

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        return list(self)[index]


def group_samples(env: Environment, group: Group, item: Any) -> Iterator[dict[str, Any]]:
    """Lines of samples.jsonl: prompt, response and reward first, then the whole rollout."""
    for rollout in group.rollouts:
        work = rollout.messages[rollout.metadata.get("prompt_length", 0) :]
        yield {
            "prompt": _prompt(env, item, rollout),
            "response": final_response(work),
            "reward": rollout.score,
            "item": group.item,
            **rollout_to_record(rollout),
        }


def _prompt(env: Environment, item: Any, rollout: Rollout) -> str | None:
    """None where the author's code raises; its rollouts have failed for that reason."""
    if rollout.seat is not None or takes_session(env, "format_prompt"):
        prompt = rollout.messages[: rollout.metadata.get("prompt_length", 0)]
        return next((message["content"] for message in reversed(prompt) if message["role"] == "user"), None)
    try:
        return env.format_prompt(item)
    except Exception:  # noqa: BLE001
        return None


GREEDY = 0.0
START_OVER = "without --resume, or in another --env.data_dir_to_save_evals"
DUPLICATE, BEYOND_LIMIT = "same_as_another", "limit_reached"


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The items of an evaluation by id, and the number of skipped duplicates."""

    items: Mapping[str, Any]
    duplicates: int


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """A finished evaluation, before its report is written."""

    folder: Path
    evaluation: EvaluationCounts
    samples: Samples
    figures: Mapping[str, float]
    """Metrics of the concurrency limiter, if it was used."""


def held_out_items(env: Environment) -> HeldOut:
    """The first `eval_size` distinct items; ConfigError when there are none, or when different items share an id."""
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
                f"two different evaluation items have the id {item_id!r}; make {type(env).__name__}.item_id unique, or "
                "do not define it"
            )
    if not items:
        raise ConfigError(
            f"{type(env).__name__} has no evaluation items: define eval_items(), or set self._eval_items in setup"
        )
    return HeldOut(items, duplicates)


async def evaluate_items(env: Environment, held: HeldOut, folder: Path) -> EvaluationResult:
    """Run the items that are missing in `folder`, and count all of them."""
    config, path = env.config, folder / GROUPS
    env.artifacts_folder = path.with_suffix(".artifacts")
    budget = Budget.from_config(config, env.server.configs)
    evaluation = EvaluationCounts(
        items=list(held.items),
        samples=config.eval_samples,
        temperature=eval_temperature(env),
        pass_score=config.pass_score,
        tally=RolloutCounts(budget=budget, pass_score=config.pass_score),
    )
    if held.duplicates:
        evaluation.left_out[DUPLICATE] = held.duplicates
    if env.resume_evaluation:
        _count_finished_items(env, path, evaluation)
    budget.start(env.server.meter)
    slots = Slots(env.server, evaluation_concurrency(config))
    try:
        async with slots.adjusting():
            await _run_missing(env, held.items, path, evaluation, slots)
    except asyncio.CancelledError:
        console().print(_saved_text(path, evaluation), soft_wrap=True)
        raise
    not_started = len(held.items) - len(evaluation.scores)
    if not_started:
        evaluation.left_out[BEYOND_LIMIT] = not_started
    return EvaluationResult(folder, evaluation, await Samples.from_file(env, path, held.items), slots.metrics())


def _saved_text(path: Path, evaluation: EvaluationCounts) -> str:
    return (
        f"{len(evaluation.scores)} of {len(evaluation.items)} items are saved in {path}; continue with --resume "
        f"--env.data_dir_to_save_evals {path.parent}"
    )


def eval_temperature(env: Environment) -> float:
    """As set; else greedy for one sample, and the agent's temperature for several, which would be identical."""
    if env.config.eval_temperature is not None:
        return float(env.config.eval_temperature)
    return GREEDY if env.config.eval_samples == 1 else float(env.config.agent_temperature)


async def _run_missing(
    env: Environment, items: Mapping[str, Any], path: Path, evaluation: EvaluationCounts, slots: Slots
) -> None:
    config, tally = env.config, evaluation.tally
    errors: list[Exception] = []
    missing = [item for item_id, item in items.items() if item_id not in evaluation.scores]
    with (
        RecordWriter(path) as writer,
        env.progress("evaluate", len(items), tally, done=len(evaluation.scores)) as progress,
    ):

        async def evaluate(item: Any) -> None:
            try:
                group = await run_group(
                    env, item, size=config.eval_samples, split="eval", temperature=evaluation.temperature
                )
                append_groups(writer, [group])
                evaluation.add(group)
                progress.advance()
                env.tools.check()
            except Exception as error:  # noqa: BLE001 (the items in flight must finish and be saved)
                errors.append(error)
            finally:
                slots.release()

        running: set[asyncio.Task[None]] = set()
        with tally.budget.enforced(running):
            async with asyncio.TaskGroup() as groups:
                for item in missing:
                    await slots.acquire()
                    tally.limit = tally.budget.reached_limit()
                    if tally.limit or errors:
                        break
                    task = groups.create_task(evaluate(item))
                    running.add(task)
                    task.add_done_callback(partial(group_ended, running, tally))
    if tally.dropped:
        tally.limit = tally.budget.reached_limit()
    if errors:
        console().print(_saved_text(path, evaluation), soft_wrap=True)
        raise errors[0]


def _count_finished_items(env: Environment, path: Path, evaluation: EvaluationCounts) -> None:
    """Count the groups of an interrupted run. Groups of items no longer in the evaluation stay in the file."""
    if not path.exists():
        return
    own, items = provenance(env), set(evaluation.items)

    def check(group: Group) -> None:
        require_same_provenance(group.provenance, own, path, START_OVER)

    set_aside_failed(path, env.group_rules().retries, check)
    for group in read_groups(path):
        check(group)
        if group.item_id in items - evaluation.scores.keys():
            evaluation.add(group)
            if env.server.pin is not None:
                env.server.pin.sampled.note(*_recorded_versions(group))
    evaluation.resumed = len(evaluation.scores)


def _recorded_versions(group: Group) -> set[int | None]:
    """The policy versions of the sampled tokens; None for those without a record, as in chat mode."""
    versions: set[int | None] = set()
    for rollout in group.rollouts:
        sampled = {
            version
            for sequence in rollout.sequences
            for version, mask in zip(sequence.versions, sequence.mask, strict=True)
            if mask
        }
        versions |= sampled or {None}
    return versions


async def write_evaluation(
    env: Environment,
    metrics: dict[str, Any],
    samples: Sequence[dict[str, Any]],
    *,
    measured: EvaluationResult | None,
    task_name: str | None,
    model_name: str | None,
    start_time: float | None,
    end_time: float | None,
    generation_parameters: dict[str, Any] | None,
    verbose: bool,
) -> None:
    """Write the report of the default `evaluate` (`measured`), or of a custom one."""
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
        "policy": evaluated_policy(env),
    }
    if measured:
        report |= {"settings": comparable_settings(env), **measured.evaluation.details()}
        await _write(env, report, samples, measured.folder, verbose=verbose)
    else:
        with report_folder(env) as folder:
            await _write(env, report, samples, folder, verbose=verbose)


def comparable_settings(env: Environment) -> dict[str, Any]:
    """The settings that affect rollouts, for `compare` and for readers of the report, without secrets."""
    secrets = [secret for secret in stored_secrets() if len(secret) >= MIN_SECRET_LENGTH]
    return {
        name: redact_value(value, secrets)
        for name, value in public_config(env.config).items()
        if name not in OPERATIONAL_FIELDS
    }


async def _write(
    env: Environment, report: dict[str, Any], samples: Sequence[dict[str, Any]], folder: Path, *, verbose: bool
) -> None:
    part = folder / f"{SAMPLES}.part"
    part.unlink(missing_ok=True)
    with RecordWriter(part) as writer:
        for sample in samples:
            writer.write(sample)
            # Training may run in the same process, and samples may be gigabytes.
            await asyncio.sleep(0)
    part.replace(folder / SAMPLES)
    write_document(folder / METRICS, report)
    env.last_evaluation = {**report, "folder": str(folder)}
    if verbose:
        evaluation_table(report, folder)
