"""Audit every task of an environment, several at once, and keep each result as soon as it is there.

The runner observes; `checks.judge` decides. A task that the environment refuses is still read for defects in its files.
"""

import asyncio
import hashlib
import inspect
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError, EnvironmentCodeError
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.prebuild import without_health_checks
from hermes_rl.environment.resolve_config import Settings
from hermes_rl.rollout.rollout import prompt_of, spec_for
from hermes_rl.validation.audit.agents import Observed, observe_task
from hermes_rl.validation.audit.checks import CHECKS, judge
from hermes_rl.validation.audit.evidence import HarborFiles, TaskEvidence
from hermes_rl.validation.audit.harbor_checks import contents
from hermes_rl.validation.audit.ledger import Ledger
from hermes_rl.validation.audit.report import AuditReport, task_record
from hermes_rl.validation.audit.task_files import find_tasks, folder_digest, read_task
from hermes_rl.validation.item_checks import CheckedItem, HookError, hook_errors, take_inventory
from hermes_rl.version import __version__

JOBS = 4
# An audit verifies a solution five times where a rollout does it once.
TIME_FACTOR = 5
# `setup` names the tasks that it refuses, one a line.
REFUSAL = re.compile(r"^\s*([^\s:]+): (.+)$", re.MULTILINE)
HELD_OUT = re.compile(r"""^\s*split\s*=\s*["']eval["']""", re.MULTILINE)

Progress = Callable[[int, int, str], object]
"""Called with the tasks done, the total, and the name of the last one."""


@dataclass(frozen=True, slots=True)
class AuditedTask:
    """A task before its audit. `item` is None if the environment refuses it."""

    name: str
    split: str
    digest: str
    likeness: str
    """Equal for tasks with the same prompt and machine."""
    item: CheckedItem | None
    files: HarborFiles | None = None
    refused: str = ""


async def run_audit(
    environment: type[HermesAgentBaseEnv],
    settings: Settings,
    *,
    out: Path | None = None,
    jobs: int = JOBS,
    items: int | None = None,
    show: Progress | None = None,
) -> AuditReport:
    """Audit all tasks, or the first `items`. ConfigError when the environment cannot be opened at all."""
    began = time.monotonic()
    folders = harbor_folders(environment, settings)
    ledger = Ledger(out)
    try:
        async with _opened(environment, settings, folders) as (env, refused):
            tasks, notes = await _tasks(env, folders, refused, items)
            records, resumed = await _audited(env, settings, tasks, ledger, jobs, show or (lambda *_: None))
    except HookError as error:
        raise ConfigError(f"{environment.display_name()} cannot be audited: {error}") from error
    return AuditReport(
        environment=environment.display_name(),
        dataset=str(settings.env.dataset_name or ""),
        records=records,
        notes=notes,
        seconds=time.monotonic() - began,
        resumed=resumed,
    )


def harbor_folders(environment: type[HermesAgentBaseEnv], settings: Settings) -> dict[str, Path]:
    """The task folders of an environment that runs Harbor tasks, by name; none for any other."""
    source = inspect.getsourcefile(environment)
    given = settings.env.dataset_name
    if given is None and source is not None:
        given = str(Path(source).with_name("data") / environment.display_name())
    return find_tasks(Path(given)) if given and Path(given).is_dir() else {}


@asynccontextmanager
async def _opened(
    environment: type[HermesAgentBaseEnv], settings: Settings, folders: Mapping[str, Path]
) -> AsyncIterator[tuple[HermesAgentBaseEnv | None, dict[str, str]]]:
    """The open environment, without the tasks that its setup refuses by name; None if it refuses all."""
    endpoints = without_health_checks(settings.endpoints)
    config = settings.env.model_copy(update={"worker_timeout": settings.env.worker_timeout * TIME_FACTOR})
    refused: dict[str, str] = {}
    while True:
        wanted = [name for name in getattr(config, "tasks", None) or folders if name not in refused]
        if folders and not wanted:
            yield None, refused
            return
        env = environment(config.model_copy(update={"tasks": wanted}) if refused else config, endpoints)
        opened = env.opened()
        try:
            with hook_errors("setup"):
                await opened.__aenter__()
        except ConfigError as error:
            found = {name: why for name, why in REFUSAL.findall(str(error)) if name in wanted}
            if not found:
                raise
            refused |= found
            continue
        try:
            yield env, refused
        finally:
            await opened.__aexit__(None, None, None)
        return


async def _tasks(
    env: HermesAgentBaseEnv | None, folders: Mapping[str, Path], refused: Mapping[str, str], limit: int | None
) -> tuple[list[AuditedTask], list[str]]:
    files = await asyncio.to_thread(lambda: {name: read_task(path) for name, path in folders.items()})
    digests = await asyncio.to_thread(lambda: {name: folder_digest(path) for name, path in folders.items()})
    notes: list[str] = []
    tasks: list[AuditedTask] = []
    if env is not None:
        if not env.has_reward:
            raise HookError("it has its own rollouts and no compute_reward, so there is no reward to audit")
        if not env.tools.pool.isolates_files:
            backend = env.tools.pool.backend.name
            notes.append(f"the backend {backend} does not isolate files, so cheats that use tools did not run")
        inventory = await take_inventory(env)
        if not inventory.random_access:
            notes.append(f"the training items are the first {len(inventory.train)} that get_next_item returns")
        chosen = [*inventory.train, *inventory.held_out] if limit is None else inventory.chosen(limit)
        for item in chosen:
            # Drawing an item twice is no duplicate; listing it twice is.
            drawn = not inventory.random_access and item.split == "train"
            if not (drawn and any(task.item and task.item.id == item.id for task in tasks)):
                tasks.append(await _task(env, item, files, digests))
    for name, why in refused.items():
        likeness = _hash(_words(files[name].instruction), contents(files[name]))
        split = "eval" if HELD_OUT.search(files[name].settings) else "train"
        tasks.append(AuditedTask(name, split, digests[name], likeness, None, files[name], why))
    return tasks, notes


async def _task(
    env: HermesAgentBaseEnv, item: CheckedItem, files: Mapping[str, HarborFiles], digests: Mapping[str, str]
) -> AuditedTask:
    with hook_errors("format_prompt"):
        item = item if item.messages else replace(item, messages=await prompt_of(env, item.value))
    name = item.value if isinstance(item.value, str) and item.value in files else None
    if name is not None:
        likeness = _hash(_words(files[name].instruction), contents(files[name]))
        return AuditedTask(name, item.split, digests[name], likeness, item, files[name])
    try:
        machine = spec_for(env, item.value).digest if env.tools.toolsets else ""
    except EnvironmentCodeError:
        machine = ""
    prompts = [_words(str(message.get("content") or "")) for message in item.messages]
    digest = _hash(item.content, item.messages)
    return AuditedTask(item.id, item.split, digest, _hash(prompts, machine), item)


async def _audited(
    env: HermesAgentBaseEnv | None,
    settings: Settings,
    tasks: Sequence[AuditedTask],
    ledger: Ledger,
    jobs: int,
    show: Progress,
) -> tuple[list[dict[str, Any]], int]:
    """The records in the order of the tasks, and how many of them an earlier audit had made."""
    kept = await asyncio.to_thread(ledger.finished)
    fixed = _hash(__version__, [check.name for check in CHECKS], settings.env.model_dump(mode="json"), _source(env))
    twins = _twins(tasks)
    keys = [
        _hash(fixed, task.digest, task.name, task.split, task.refused, twins[index]) for index, task in enumerate(tasks)
    ]
    records = [record if (record := kept.get(key)) and not record["again"] else None for key in keys]
    resumed = done = sum(record is not None for record in records)
    show(done, len(tasks), "")
    slots, writing = asyncio.Semaphore(jobs), asyncio.Lock()
    tools: list[str] = []
    isolated = False
    if env is not None:
        env.tools.report = lambda _: None
        tools = [tool.name for opened in env.tools.toolsets.values() for tool in opened.tools]
        isolated = env.tools.pool.isolates_files

    async def audit(index: int) -> None:
        nonlocal done
        task = tasks[index]
        async with slots:
            began = time.monotonic()
            seen = Observed()
            if env is not None and task.item is not None:
                seen = await observe_task(env, task.item, tools, task.files, isolated=isolated)
            evidence = TaskEvidence(
                task=task.name,
                split=task.split,
                pass_score=settings.env.pass_score,
                agents=seen.agents,
                files=task.files,
                leaks=seen.leaks,
                twins=twins[index],
                broken=seen.broken,
                refused=task.refused,
            )
            record = task_record(
                keys[index],
                type(env).display_name() if env else "harbor",
                task.digest,
                evidence,
                judge(evidence),
                time.monotonic() - began,
            )
            async with writing:
                await asyncio.to_thread(ledger.add, record)
        records[index] = record
        done += 1
        show(done, len(tasks), task.name)

    async with asyncio.TaskGroup() as work:
        for index, record in enumerate(records):
            if record is None:
                work.create_task(audit(index))
    return [record for record in records if record is not None], resumed


def _twins(tasks: Sequence[AuditedTask]) -> list[list[tuple[str, str]]]:
    """For each task the others with its prompt and machine."""
    alike: dict[str, list[int]] = {}
    for index, task in enumerate(tasks):
        alike.setdefault(task.likeness, []).append(index)
    return [
        [(tasks[other].name, tasks[other].split) for other in alike[task.likeness] if other != index]
        for index, task in enumerate(tasks)
    ]


def _source(env: HermesAgentBaseEnv | None) -> str:
    source = inspect.getsourcefile(type(env)) if env else None
    return hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else ""


def _words(text: str) -> str:
    """A prompt without differences of case and space."""
    return " ".join(text.casefold().split())


def _hash(*values: Any) -> str:
    return hashlib.sha256(fast_json.dumps(values)).hexdigest()
