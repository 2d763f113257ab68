"""From saved weights to a policy that others sample from: at the engine that trains, or at vLLM servers.

Always true: a sampler that failed is tried once more before the engine is given up; only then the trainer hears of it.
"""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

from hermes_rl.errors import EndpointError
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.training.engine import EngineError, TrainingEngine
from hermes_rl.training.policy import Sampler
from hermes_rl.training.sampling_policy import SamplingPolicy
from hermes_rl.training.vllm_fleet.fleet import VllmFleet
from hermes_rl.training.weights.download import Remote, download_adapter

# One token after one token: what any sampler can do.
PROBE = SamplingRequest.of({"max_tokens": 1})
PROBE_IDS = (0,)


class EnginePublishing:
    """The engine that trains also samples. `lost` is told when it no longer can."""

    def __init__(self, patience: float) -> None:
        self.lost: Callable[[EngineError], None] | None = None
        self.policy = SamplingPolicy(patience=patience, failed=self._failed)
        self._sampler: Sampler | None = None
        self._probing: asyncio.Task[None] | None = None

    async def publish(self, version: int, engine: TrainingEngine, sampler: str) -> None:
        self._sampler = await engine.sampler(sampler)
        self.policy.publish(version, self._sampler)

    def withdraw(self) -> None:
        self._sampler = None
        self.policy.withdraw()

    def _failed(self, version: int, error: EndpointError) -> None:
        if error.cause == "engine" and version == self.policy.version and self._probing is None:
            self._probing = asyncio.create_task(self._probe())

    async def _probe(self) -> None:
        sampler = self._sampler
        try:
            if sampler is not None:
                await sampler.sample(PROBE_IDS, PROBE)
        except EndpointError as error:
            if sampler is self._sampler and self.lost is not None:
                self.lost(EngineError(str(error)))
        finally:
            self._probing = None


class VllmPublishing:
    """vLLM servers sample. Each version is fetched from the engine into `folder`, from which the servers read it."""

    def __init__(self, fleet: VllmFleet, folder: Path, base_url: str) -> None:
        self.policy = fleet
        self._folder, self._base_url = folder, base_url

    async def publish(self, version: int, engine: TrainingEngine, sampler: str) -> None:
        place = self._folder / f"version-{version}"
        if not place.exists():
            aside = self._folder / f"version-{version}.new"
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            await download_adapter(Remote(sampler, base_url=self._base_url), aside)
            aside.rename(place)
        try:
            await self.policy.load(version, place)
        except EndpointError as error:
            raise EngineError(str(error)) from error
        for old in self._folder.glob("version-*"):
            number = old.name.partition("-")[2]
            if number.isdecimal() and int(number) not in self.policy.versions_in_use:
                shutil.rmtree(old, ignore_errors=True)

    def withdraw(self) -> None:
        """They go on with what they have: it is the engine that is lost."""
