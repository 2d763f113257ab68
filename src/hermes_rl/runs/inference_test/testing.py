"""The inference test: the same few groups with each of several models at once, and what they show.

Always true: one model that fails stops no other; what a model made before its time was up counts.
"""

import asyncio
import inspect
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hermes_rl.errors import ConfigError
from hermes_rl.runs.inference_test.candidates import Candidate, Model, candidates
from hermes_rl.runs.inference_test.judging import Check, Verdict, checks, figures, together
from hermes_rl.runs.inference_test.outputs import Outputs, outputs
from hermes_rl.runs.inference_test.running import Ran, last_words, run_process
from hermes_rl.runs.places import inference_tests_home
from hermes_rl.store.records import read_groups
from hermes_rl.trajectory import Group

SECONDS_EACH = 600.0
AT_ONCE = 4
LOOK_EVERY = 0.5

Progress: TypeAlias = Callable[[int, int, str], Awaitable[None] | None]
"""Told of groups done, groups in all, and of which model the last one was."""


@dataclass(frozen=True, slots=True)
class Tested:
    """One model's part: its line of the report, and its verdicts."""

    report: dict[str, Any]
    checks: Mapping[str, Check]

    @property
    def succeeded(self) -> bool:
        return bool(self.report["scored"])


@dataclass(slots=True)
class Counting:
    """Tells the progress of all models together."""

    steps: int
    progress: Progress | None
    done: dict[int, int] = field(default_factory=dict)

    async def tell(self, place: int, model: str, groups: int) -> None:
        if self.progress is None or self.done.get(place) == groups:
            return
        self.done[place] = groups
        told = self.progress(sum(self.done.values()), self.steps * len(self.done), f"{model}: {groups} groups")
        if inspect.isawaitable(told):
            await told


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
    """Run `num_steps` groups of an environment with each model; the report of docs/inference-testing.md.

    `env_changes` go over the environment's own settings. ConfigError for arguments that make no test.
    """
    for what, value in {"num_steps": num_steps, "group_size": group_size}.items():
        if type(value) is not int or value < 1:
            raise ConfigError(f"{what} is a whole number from 1 on, got {value!r}; the seed's test has 3 steps of 16")
    chosen = candidates(models)
    settings = {
        **env_changes,
        "total_steps": num_steps,
        "group_size": group_size,
        "use_wandb": False,
        "metric_sinks": [],
    }
    counting = Counting(num_steps, progress, dict.fromkeys(range(len(chosen)), 0))
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(place: int, candidate: Candidate) -> Tested:
        async with slots:
            with outputs(inference_tests_home(), name, candidate.model) as files:
                watching = asyncio.create_task(_watch(files, place, candidate.model, counting))
                try:
                    return await _tested(reference, settings, candidate, files, seconds_each)
                finally:
                    watching.cancel()
                    await asyncio.wait([watching])
                    await counting.tell(place, candidate.model, files.finished())

    async with asyncio.TaskGroup() as work:
        tasks = [work.create_task(one(place, candidate)) for place, candidate in enumerate(chosen)]
    tested = [task.result() for task in tasks]
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
        "models_tested": [one.report for one in tested],
        "summary": _summary(tested, num_steps),
    }


async def _tested(
    reference: str, settings: Mapping[str, Any], candidate: Candidate, files: Outputs, seconds: float
) -> Tested:
    problem = candidate.lacking()
    groups: list[Group] = []
    if problem is None:
        ran = await run_process(reference, settings, candidate.endpoint, files, seconds)
        problem = _problem(ran, files, seconds)
        try:
            groups = await asyncio.to_thread(lambda: list(read_groups(files.groups)) if files.groups.exists() else [])
        except ConfigError as error:
            problem = str(error)
    found = checks(groups, problem, began=candidate.lacking() is None)
    numbers = figures(groups)
    if problem is None and not numbers["scored"]:
        problem = found["scoring"].why
    return Tested(
        {
            "model": candidate.model,
            "scale": candidate.scale,
            "base_url": candidate.endpoint["base_url"],
            "output_file": str(files.groups),
            "log_file": str(files.log),
            **numbers,
            **({} if problem is None else {"error": problem}),
            "checks": {name: check.told() for name, check in found.items()},
        },
        found,
    )


def _problem(ran: Ran, files: Outputs, seconds: float) -> str | None:
    if ran.timed_out:
        made = files.finished()
        return f"it was ended after {seconds:g} s with {made} groups made; ask for fewer steps or a smaller group_size"
    # `process` ends so too when it made all groups and no rollout was scored.
    return None if ran.exit_code == 0 or files.finished() else last_words(files.log)


def _summary(tested: Sequence[Tested], num_steps: int) -> dict[str, Any]:
    succeeded = [one for one in tested if one.succeeded]
    accuracies = [one.report["accuracy"] for one in succeeded]
    best = max(succeeded, key=lambda one: (one.report["accuracy"], one.report["mean_score"]), default=None)
    overall = together(dict(one.checks) for one in tested)
    own = ("environment_loads", "prompt_construction", "scoring")
    parsed = any(one.checks["response_parsing"].verdict is not Verdict.FAIL for one in succeeded)
    return {
        "steps_requested": num_steps,
        "models_tested": len(tested),
        "models_succeeded": len(succeeded),
        "best_model": best.report["model"] if best else None,
        "avg_accuracy": statistics.fmean(accuracies) if accuracies else None,
        "environment_working": parsed and all(overall[name].verdict is not Verdict.FAIL for name in own),
        "output_directory": str(inference_tests_home()),
        "checks": {name: check.told() for name, check in overall.items()},
    }


async def _watch(files: Outputs, place: int, model: str, counting: Counting) -> None:
    while True:
        await asyncio.sleep(LOOK_EVERY)
        await counting.tell(place, model, await asyncio.to_thread(files.finished))
