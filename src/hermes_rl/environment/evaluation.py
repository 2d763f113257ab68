"""Evaluation: the agent on held-out items, metrics and samples to disk, a table for the reader.

Means are taken over scored rollouts only; failures stand beside them by cause. Results are always written, to the
folder asked for or to one under Hermes' home.
"""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hermes_rl import jsontext
from hermes_rl.environment.contract import Environment
from hermes_rl.environment.display import evaluation_table
from hermes_rl.environment.groups import provenance, run_group
from hermes_rl.environment.metrics import Tally
from hermes_rl.home import rl_home
from hermes_rl.messages import final_response
from hermes_rl.store import RecordWriter, rollout_record
from hermes_rl.trajectory import Group

TEMPERATURE = 0.0


async def evaluate_items(env: Environment, items: Sequence[Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One rollout an item, `max_eval_workers` at once: the metrics, and a sample for each rollout."""
    tally = Tally()
    slots = asyncio.Semaphore(env.config.max_eval_workers)
    with env.progress("evaluate", len(items), tally) as progress:

        async def one(item: Any) -> Group:
            async with slots:
                group = await run_group(env, item, size=1, split="eval", temperature=TEMPERATURE)
            tally.add(group)
            progress.advance()
            return group

        async with asyncio.TaskGroup() as work:
            tasks = [work.create_task(one(item)) for item in items]
    samples = [sample_of(env, task.result()) for task in tasks]
    return eval_metrics(tally), samples


def eval_metrics(tally: Tally) -> dict[str, Any]:
    metrics: dict[str, Any] = {
        "eval/mean_reward": tally.mean,
        "eval/standard_error": tally.standard_error,
        "eval/rollouts": tally.rollouts,
        "eval/scored": len(tally.scores),
        "eval/tool_calls": tally.tool_calls,
        "eval/tool_errors": tally.tool_errors,
    }
    metrics |= {f"eval/stop_reason/{reason}": count for reason, count in sorted(tally.stop_reasons.items())}
    metrics |= {f"eval/failure/{cause}": count for cause, count in sorted(tally.failures.items())}
    return metrics


def sample_of(env: Environment, group: Group) -> dict[str, Any]:
    """One line of samples.jsonl: the prompt, the answer and the reward at a glance, then the whole rollout."""
    (rollout,) = group.rollouts
    return {
        "prompt": env.format_prompt(group.item),
        "response": final_response(rollout.messages[len(env.initial_messages(group.item)) :]),
        "reward": rollout.score,
        "item": group.item,
        **rollout_record(rollout),
    }


def write_evaluation(
    env: Environment,
    metrics: dict[str, Any],
    samples: Sequence[dict[str, Any]],
    *,
    task_name: str | None,
    model_name: str | None,
    start_time: float | None,
    end_time: float | None,
    generation_parameters: dict[str, Any] | None,
    verbose: bool,
) -> None:
    end = end_time if end_time is not None else time.time()
    source = provenance(env)
    report = {
        "format": "hermes-rl/evaluation/1",
        "task": task_name or env.display_name(),
        "model": model_name or source.model,
        "metrics": metrics,
        "samples": len(samples),
        "seconds": round(end - start_time, 3) if start_time is not None else None,
        "finished_at": datetime.fromtimestamp(end, UTC).isoformat(timespec="seconds"),
        "generation_parameters": generation_parameters
        or {"temperature": TEMPERATURE, "max_tokens": env.config.max_token_length},
        "provenance": source,
    }
    folder = Path(env.config.data_dir_to_save_evals) if env.config.data_dir_to_save_evals else _own_folder(env)
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / "metrics.json", jsontext.dumps(report) + b"\n")
    part = folder / "samples.jsonl.part"
    part.unlink(missing_ok=True)
    with RecordWriter(part) as writer:
        for sample in samples:
            writer.write(sample)
    part.replace(folder / "samples.jsonl")
    env.last_evaluation = {**report, "folder": str(folder)}
    if verbose:
        evaluation_table(report, folder)


def _own_folder(env: Environment) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return rl_home() / "evals" / f"{env.display_name()}-{stamp}"


def _replace(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    part.replace(path)
