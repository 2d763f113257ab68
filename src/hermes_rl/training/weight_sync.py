"""Weight sync: make saved weights the policy that is sampled from, at the training engine or on vLLM servers.

Always true: a failed sampler is probed once more before the trainer is notified that the engine is lost.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from hermes_rl.core.errors import EndpointError
from hermes_rl.training.engines.protocol import EngineError, TrainingEngine
from hermes_rl.training.live_policy import SamplingPolicy
from hermes_rl.training.policy import WeightsSampler
from hermes_rl.training.vllm_fleet.fleet import VllmFleet
from hermes_rl.training.vllm_fleet.server import PROBE, PROBE_IDS
from hermes_rl.training.weights.download import Remote, download_adapter

log = logging.getLogger(__name__)


class EngineWeightSync:
    """The training engine also samples. `on_lost` is called when it no longer can."""

    def __init__(self, patience: float) -> None:
        self.on_lost: Callable[[EngineError], None] | None = None
        self.policy = SamplingPolicy(patience=patience, on_failure=self._on_failure)
        self._sampler: WeightsSampler | None = None
        self._engine: TrainingEngine | None = None
        self._paths: dict[int, str] = {}
        """Where the engine has the versions of the policy."""
        self._probing: asyncio.Task[None] | None = None

    async def publish(self, version: int, engine: TrainingEngine, sampler: str) -> None:
        self._sampler = await engine.sampler(sampler)
        # Samplers of an engine that was closed no longer work.
        older = None if engine is self._engine else await self._reopen_held(version, engine)
        self.policy.publish(version, self._sampler, older)
        self._engine, self._paths[version] = engine, sampler
        self._paths = {number: self._paths[number] for number in self.policy.versions}

    def withdraw(self) -> None:
        self._sampler = None
        self.policy.withdraw()

    def samplers_in_use(self) -> frozenset[str]:
        return frozenset(self._paths[version] for version in self.policy.held)

    async def _reopen_held(self, version: int, engine: TrainingEngine) -> dict[int, WeightsSampler]:
        samplers: dict[int, WeightsSampler] = {}
        for held in self.policy.held - {version}:
            try:
                samplers[held] = await engine.sampler(self._paths[held])
            except EngineError as error:
                log.warning("version %d can no longer be held for an evaluation: %s", held, error)
        return samplers

    def _on_failure(self, version: int, error: EndpointError) -> None:
        if error.cause == "engine" and self._probing is None:
            self._probing = asyncio.create_task(self._probe(version, error))

    async def _probe(self, version: int, failure: EndpointError) -> None:
        """Sample from the newest weights: if that works, only the version of the failed request is lost."""
        sampler = self._sampler
        try:
            if sampler is not None:
                await sampler.sample(PROBE_IDS, PROBE)
                if version != self.policy.version and version in self.policy.held:
                    log.warning("version %d can no longer be held for an evaluation: %s", version, failure)
                    self.policy.drop(version)
        except EndpointError as error:
            if sampler is self._sampler and self.on_lost is not None:
                self.on_lost(EngineError(str(error)))
        finally:
            self._probing = None


class VllmWeightSync:
    """vLLM servers sample. Each version is downloaded from the engine into `folder`, where the servers read it."""

    def __init__(self, fleet: VllmFleet, folder: Path, base_url: str) -> None:
        self.policy = fleet
        self._folder, self._base_url = folder, base_url

    async def publish(self, version: int, engine: TrainingEngine, sampler: str) -> None:
        adapter = self._folder / f"version-{version}"
        if not adapter.exists():
            temporary = self._folder / f"version-{version}.new"
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            await download_adapter(Remote(sampler, base_url=self._base_url), temporary)
            temporary.rename(adapter)
        try:
            await self.policy.load(version, adapter)
        except EndpointError as error:
            raise EngineError(str(error)) from error
        for old in self._folder.glob("version-*"):
            number = old.name.partition("-")[2]
            if number.isdecimal() and int(number) not in self.policy.versions_in_use:
                shutil.rmtree(old, ignore_errors=True)

    def withdraw(self) -> None:
        """Do nothing: the engine is lost, and the servers keep sampling from the weights they have."""

    def samplers_in_use(self) -> frozenset[str]:
        """None: the servers read their own copies."""
        return frozenset()
