"""Run the inference test: a few groups with each of several models concurrently, and report on them.

Always true: a model that fails does not stop the others; groups finished before a timeout count.
"""

import asyncio
import inspect
import os
import statistics
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from hermes_rl.core.child_python import python_command
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.process_guard import KILL_TIMEOUT, guard_argv
from hermes_rl.core.trajectory import Group
from hermes_rl.orchestration.inference_test.candidates import CandidateModel, Model, parse_candidates
from hermes_rl.orchestration.inference_test.checks import (
    InferenceCheck,
    ModelVerdict,
    compute_checks,
    compute_metrics,
    merge_checks,
)
from hermes_rl.orchestration.inference_test.outputs import Outputs, open_outputs
from hermes_rl.orchestration.keys import key_variables, referenced_keys
from hermes_rl.orchestration.run_paths import inference_tests_home
from hermes_rl.store.records import read_groups

# Each model runs in a subprocess, `hermes-rl process`, with a time limit. After a timeout, a cancellation or the death
# of the caller, the process and everything it started are gone. Its command line contains no setting, its configuration
# no key.

# Keys that an environment's tools and sandboxes may need, in addition to those in its settings.
TOOL_KEYS = (
    "HF_TOKEN",
    "DAYTONA_API_KEY",
    "MODAL_TOKEN_ID",
    "MODAL_TOKEN_SECRET",
    "TAVILY_API_KEY",
    "EXA_API_KEY",
    "BRAVE_API_KEY",
)
# A request that hangs should be reported as a failure of its rollout, even after one retry.
REQUEST_TIMEOUT_SHARE = 0.4
TAIL = 4000
# Seconds for a process to close its sandboxes.
INTERRUPT_GRACE = 10.0


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """`exit_code` is None after a timeout."""

    exit_code: int | None

    @property
    def timed_out(self) -> bool:
        return self.exit_code is None


async def run_process(
    reference: str, settings: Mapping[str, Any], endpoint: Mapping[str, Any], files: Outputs, seconds: float
) -> ProcessResult:
    """Generate the groups of one model."""
    sections = {
        "env": {**settings, "data_path_to_save_groups": str(files.groups)},
        "openai": {"timeout": seconds * REQUEST_TIMEOUT_SHARE, **endpoint},
    }
    variables = {**os.environ, **key_variables((*referenced_keys(sections), *TOOL_KEYS))}
    with tempfile.TemporaryDirectory(prefix="hermes-rl-test-") as private:
        config = Path(private) / "config.yaml"
        config.write_text(yaml.safe_dump(sections, allow_unicode=True))
        command = python_command("-m", "hermes_rl", "process", reference, "--overwrite", "--config", str(config))
        process = await asyncio.create_subprocess_exec(
            *guard_argv(command, grace=INTERRUPT_GRACE),
            stdin=asyncio.subprocess.PIPE,
            stdout=files.log_file,
            stderr=files.log_file,
            env=variables,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(seconds):
                return ProcessResult(await process.wait())
        except TimeoutError:
            return ProcessResult(None)
        finally:
            await asyncio.shield(_end(process))


async def _end(process: asyncio.subprocess.Process) -> None:
    """Close the guard's stdin, which ends the process, and wait for it."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(INTERRUPT_GRACE + 2 * KILL_TIMEOUT):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def last_error(log: Path) -> str:
    """The last `error:` line of a log, else its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace")[-TAIL:].splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines or ["no output"])[-1].removeprefix("error: ")


SECONDS_EACH = 600.0
CONCURRENT_MODELS = 4
POLL_SECONDS = 0.5

Progress: TypeAlias = Callable[[int, int, str], Awaitable[None] | None]
"""Called with the groups done, the total, and the model of the last one."""


@dataclass(frozen=True, slots=True)
class ModelResult:
    """One model's entry in the report, and its checks."""

    report: dict[str, Any]
    checks: Mapping[str, InferenceCheck]

    @property
    def succeeded(self) -> bool:
        return bool(self.report["scored"])


@dataclass(slots=True)
class ProgressCounter:
    """Reports the combined progress of all models."""

    steps: int
    progress: Progress | None
    done: dict[int, int] = field(default_factory=dict)

    async def update(self, index: int, model: str, groups: int) -> None:
        if self.progress is None or self.done.get(index) == groups:
            return
        self.done[index] = groups
        result = self.progress(sum(self.done.values()), self.steps * len(self.done), f"{model}: {groups} groups")
        if inspect.isawaitable(result):
            await result


async def run_test(
    reference: str,
    name: str,
    env_changes: Mapping[str, Any],
    models: Sequence[Model] | None = None,
    *,
    num_steps: int = 3,
    group_size: int = 16,
    seconds_each: float = SECONDS_EACH,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Run `num_steps` groups of an environment with each model; the report of docs/validation.md.

    `env_changes` override the environment's own settings. ConfigError for invalid arguments.
    """
    for what, value in {"num_steps": num_steps, "group_size": group_size}.items():
        if type(value) is not int or value < 1:
            raise ConfigError(f"{what} must be an integer >= 1, got {value!r}; the seed's test has 3 steps of 16")
    chosen = parse_candidates(models)
    settings = {
        **env_changes,
        "total_steps": num_steps,
        "group_size": group_size,
        "use_wandb": False,
        "metric_sinks": [],
    }
    counter = ProgressCounter(num_steps, progress, dict.fromkeys(range(len(chosen)), 0))
    slots = asyncio.Semaphore(CONCURRENT_MODELS)

    async def test(index: int, candidate: CandidateModel) -> ModelResult:
        async with slots:
            with open_outputs(inference_tests_home(), name, candidate.model) as files:
                watcher = asyncio.create_task(_watch(files, index, candidate.model, counter))
                try:
                    return await _test_model(reference, settings, candidate, files, seconds_each)
                finally:
                    watcher.cancel()
                    await asyncio.wait([watcher])
                    await counter.update(index, candidate.model, files.finished())

    async with asyncio.TaskGroup() as work:
        tasks = [work.create_task(test(index, candidate)) for index, candidate in enumerate(chosen)]
    results = [task.result() for task in tasks]
    return {
        "environment": name,
        "reference": reference,
        "test_config": {
            "num_steps": num_steps,
            "group_size": group_size,
            "models": [candidate.model for candidate in chosen],
            "total_rollouts": num_steps * group_size * len(chosen),
            "seconds_each": seconds_each,
        },
        "models_tested": [result.report for result in results],
        "summary": _summary(results, num_steps),
    }


async def _test_model(
    reference: str, settings: Mapping[str, Any], candidate: CandidateModel, files: Outputs, seconds: float
) -> ModelResult:
    problem = candidate.missing_key()
    groups: list[Group] = []
    if problem is None:
        result = await run_process(reference, settings, candidate.endpoint, files, seconds)
        problem = _problem(result, files, seconds)
        try:
            groups = await asyncio.to_thread(lambda: list(read_groups(files.groups)) if files.groups.exists() else [])
        except ConfigError as error:
            problem = str(error)
    checks = compute_checks(groups, problem, began=candidate.missing_key() is None)
    metrics = compute_metrics(groups)
    if problem is None and not metrics["scored"]:
        problem = checks["scoring"].why
    return ModelResult(
        {
            "model": candidate.model,
            "scale": candidate.scale,
            "base_url": candidate.endpoint["base_url"],
            "output_file": str(files.groups),
            "log_file": str(files.log),
            **metrics,
            **({} if problem is None else {"error": problem}),
            "checks": {name: check.as_dict() for name, check in checks.items()},
        },
        checks,
    )


def _problem(result: ProcessResult, files: Outputs, seconds: float) -> str | None:
    if result.timed_out:
        return f"timed out after {seconds:g} s with {files.finished()} groups; use fewer steps or a smaller group_size"
    # `process` also fails when it finished all groups and no rollout was scored.
    return None if result.exit_code == 0 or files.finished() else last_error(files.log)


def _summary(results: Sequence[ModelResult], num_steps: int) -> dict[str, Any]:
    succeeded = [result for result in results if result.succeeded]
    reports = [result.report for result in succeeded]
    accuracies = [report["accuracy"] for report in reports]
    best = max(reports, key=lambda report: (report["accuracy"], report["mean_score"]), default=None)
    overall = merge_checks(dict(result.checks) for result in results)
    own = ("environment_loads", "prompt_construction", "scoring")
    parsed = any(result.checks["response_parsing"].verdict is not ModelVerdict.FAIL for result in succeeded)
    return {
        "steps_requested": num_steps,
        "models_tested": len(results),
        "models_succeeded": len(succeeded),
        "best_model": best["model"] if best else None,
        "avg_accuracy": statistics.fmean(accuracies) if accuracies else None,
        "environment_working": parsed and all(overall[name].verdict is not ModelVerdict.FAIL for name in own),
        "output_directory": str(inference_tests_home()),
        "checks": {name: check.as_dict() for name, check in overall.items()},
    }


async def _watch(files: Outputs, index: int, model: str, counter: ProgressCounter) -> None:
    while True:
        await asyncio.sleep(POLL_SECONDS)
        await counter.update(index, model, await asyncio.to_thread(files.finished))
