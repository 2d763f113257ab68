"""What a session prepares before its first rollout: which tasks can run on its backend, and the machines of those.

A task that asks for what cannot be had is named with its reason. One whose machine fails to build has that reason in
place of its machines, so that it is reported and never scored.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.interop.harbor.dockerfile import UnsupportedError
from hermes_rl.interop.harbor.images import MachineBuilder
from hermes_rl.interop.harbor.machine import Recipe, agent_machine, verifier_machine, with_dependencies
from hermes_rl.interop.harbor.task import Task, TaskStep
from hermes_rl.sandbox.backends.registry import open_backends
from hermes_rl.sandbox.protocol import Backend
from hermes_rl.sandbox.spec import Limits, SandboxSpec, resolve_spec

BUILD_TIMEOUT = 600.0
IMAGES_BY_PATH = ("bubblewrap", "singularity")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """Images by the names that tasks use, limits and network over those of tasks, and what builds get."""

    images: Mapping[str, str]
    limits: Limits
    network: bool | None
    build_env: Mapping[str, str]
    build_network: bool


@dataclass(frozen=True, slots=True)
class TaskMachines:
    """The agent's sandbox and, by the name of a step, that of its tests."""

    agent: SandboxSpec
    judges: Mapping[str, SandboxSpec]


@asynccontextmanager
async def opened_machines(
    backend: str, backend_settings: Mapping[str, Any], settings: MachineSettings
) -> AsyncIterator["Preparation"]:
    """Open a backend for preparations; ConfigError unless it isolates what a task runs."""
    opened = await open_backends(backend, backend_settings)
    builder = MachineBuilder(opened[0], network=settings.build_network, env=settings.build_env)
    try:
        if not opened[0].capabilities.isolates_files:
            raise ConfigError(
                f"the backend {opened[0].name} is not a sandbox, which harbor's tasks need; choose another"
            )
        yield Preparation(opened[0], builder, settings)
    finally:
        await builder.close()
        for one in opened:
            await one.close()


class Preparation:
    """Decides and builds for one backend."""

    def __init__(self, backend: Backend, builder: MachineBuilder, settings: MachineSettings) -> None:
        self._backend = backend
        self._builder = builder
        self._settings = settings

    def loadable(self, tasks: Sequence[Task]) -> tuple[list[Task], list[str]]:
        """The tasks that can run here, and what the others ask for, each with its task's name."""
        loadable: list[Task] = []
        problems: list[str] = []
        for task in tasks:
            try:
                found = list(dict.fromkeys(self._problems(task)))
            except (UnsupportedError, ConfigError) as error:
                found = [str(error)]
            except (KeyError, TypeError, AttributeError) as error:
                found = [f"task.toml cannot be used: {type(error).__name__}: {error}"]
            problems += (f"{task.name}: {problem}" for problem in found)
            if not found:
                loadable.append(task)
        return loadable, problems

    async def build(self, tasks: Sequence[Task]) -> dict[str, TaskMachines | str]:
        """The machines of each task, or why they cannot be built."""
        made = await asyncio.gather(*map(self._built, tasks))
        return {task.name: one for task, one in zip(tasks, made, strict=True)}

    def _problems(self, task: Task) -> Iterator[str]:
        yield from task.problems()
        image = self._image(task.build.image, task)
        agent_machine(task, image)
        for step in task.steps:
            if own := self._own_machine(task, step):
                yield from () if own.image else [f"step {step.name}: no image"]
            elif image is None and (what := task.fetches(step)):
                yield f"tests/test.sh calls {what}, but without an image nothing can be installed for it"
        spec = SandboxSpec(limits=self._limits(task), network=self._network(task), image=image)
        resolve_spec(spec, self._backend.name, self._backend.capabilities)

    async def _built(self, task: Task) -> TaskMachines | str:
        try:
            recipe = agent_machine(task, self._image(task.build.image, task))
            agent = await self._machine(task, recipe, self._network(task))
            judges = {step.name: await self._judge(task, step, recipe, agent) for step in task.steps}
        except (HermesRLError, UnsupportedError) as error:
            return str(error)
        return TaskMachines(replace(agent, hidden=(task.folder.resolve(),)), judges)

    async def _judge(self, task: Task, step: TaskStep, recipe: Recipe, agent: SandboxSpec) -> SandboxSpec:
        own = self._own_machine(task, step)
        needed = own or recipe
        if task.fetches(step):
            needed = with_dependencies(needed, task, step, has_tests=own is not None)
        return agent if needed is recipe else await self._machine(task, needed, self._off)

    async def _machine(self, task: Task, recipe: Recipe, network: bool | None) -> SandboxSpec:
        timeout = float(task.environment.get("build_timeout_sec", BUILD_TIMEOUT))

        def report(line: str) -> None:
            _log.info("%s: %s", task.name, line)

        return await self._builder.machine(recipe, self._limits(task), network=network, timeout=timeout, report=report)

    def _own_machine(self, task: Task, step: TaskStep) -> Recipe | None:
        """The machine of the tests' own; UnsupportedError when its image cannot be had."""
        own = task.verifier_build(step) if task.separate(step) else None
        return None if own is None else verifier_machine(task, step, *own, self._image(own[0].image, None) or "")

    def _image(self, name: str, task: Task | None) -> str | None:
        """The image to start with; None for the host's own /usr, if the task runs without an image."""
        images = self._settings.images
        if name in images or self._backend.name not in IMAGES_BY_PATH:
            return images.get(name, name)
        if task is not None and task.section("metadata").get("runs_without_image"):
            return None
        raise UnsupportedError(
            f"{self._backend.name} takes a tar or directory for the image {name}: name it in --env.images"
        )

    @property
    def _off(self) -> bool | None:
        """No network. An engine, which builds with the same setting, has none by default."""
        return False if self._backend.name in IMAGES_BY_PATH else None

    def _network(self, task: Task) -> bool | None:
        """The agent's network."""
        if task.network and self._settings.network:
            return True
        return self._off if self._backend.capabilities.network_off or task.network else False

    def _limits(self, task: Task) -> Limits:
        """What the task asks for, where the backend holds it, unless the settings say otherwise."""
        held, ours = self._backend.capabilities.limits, self._settings.limits
        asked = {
            "memory_mb": task.megabytes("memory_mb"),
            "cpus": task.environment.get("cpus"),
            "disk_mb": task.megabytes("storage_mb"),
        }
        return Limits(**{**{name: asked.get(name) for name in held & set(asked)}, **ours.named()})  # type: ignore[arg-type]
