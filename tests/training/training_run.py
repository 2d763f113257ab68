"""Runs of a trainer over a real API, with an engine that keeps books, that can die at any of their steps."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes_rl.api.client.connection import ApiConnection
from hermes_rl.api.client.trainer import TrainerClient
from hermes_rl.core.shutdown import StopSignal
from hermes_rl.core.trajectory import Sampling, Sequence
from hermes_rl.training.checkpoints import Lineage
from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.engines.protocol import TrainingEngine
from hermes_rl.training.step import GRPOStep
from hermes_rl.training.trainer import Trainer
from tests.api.client.running_api import RunningApi
from tests.store.database.making import make_group, make_rollout
from tests.support.training_engine import Engines


class Died(BaseException):
    """As by kill -9: nothing of ours catches it."""


def batch_group(token: int, *, version: int = 0, scores: tuple[float, ...] = (0.0, 1.0)) -> bytes:
    """A group of two that can be told from others by its first token."""
    sequence = Sequence((token, 6, 7), (0, 1, 1), (None, -0.5, -0.5), (None, version, version), Sampling(1.0))
    rollouts = tuple(make_rollout(index, score=score, sequences=(sequence,)) for index, score in enumerate(scores))
    return make_group(rollouts=rollouts, id=f"group-{token}")


async def fill(api: RunningApi, tokens: range, **group: Any) -> None:
    environment = await api.store.register_environment("e")
    for token in tokens:
        await api.store.add(environment.id, batch_group(token, **group))


@dataclass
class Publications:
    """What whoever samples was told, in order; None for a withdrawal."""

    versions: list[int | None] = field(default_factory=list)
    in_use: frozenset[str] = frozenset()

    async def publish(self, version: int, engine: TrainingEngine, sampler: str) -> None:
        self.versions.append(version)

    def withdraw(self) -> None:
        self.versions.append(None)

    def samplers_in_use(self) -> frozenset[str]:
        return self.in_use


class CountedClient(TrainerClient):
    """Calls `before` ahead of every request to the API, and `after` when it was carried out."""

    def __init__(self, *arguments: Any, before: Callable[[str], None], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._before = before

    async def _ask(self, method: str, path: str, body: Any = None, **more: Any) -> bytes:
        self._before(f"before {method} {path}")
        data = await super()._ask(method, path, body, **more)
        self._before(f"after {method} {path}")
        return data


@dataclass
class Run:
    """A run that can be started again and again on the same lineage. `metrics` is by step, the last told."""

    api: RunningApi
    folder: Path
    engines: Engines = field(default_factory=Engines)
    settings: TrainerSettings = field(
        default_factory=lambda: TrainerSettings(
            base_url="http://engine", batch_size=2, total_steps=4, step_retries=2, max_staleness=100
        )
    )
    published: Publications = field(default_factory=Publications)
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    before: Callable[[str], None] = lambda name: None

    @property
    def lineage(self) -> Lineage:
        return Lineage(self.folder / "lineage.jsonl")

    @asynccontextmanager
    async def trainer(self) -> AsyncIterator[Trainer]:
        async with ApiConnection(self.api.url) as connection:
            client = CountedClient(connection, "t", patience=5.0, before=self.before)
            yield Trainer(
                self.settings,
                self.lineage,
                client,
                self.engines.open,
                GRPOStep(self.settings),
                self.published,
                self.metrics.__setitem__,
            )

    async def start(self, stop: StopSignal | None = None, *, within: float = 20.0) -> str:
        async with self.trainer() as trainer, asyncio.timeout(within):
            return await trainer.run(stop or StopSignal(5.0))

    def learned(self) -> tuple[int, ...]:
        """What the weights of the last checkpoint learned, by the first tokens of the batches."""
        last = self.lineage.last
        assert last is not None
        return self.engines.checkpoints[last.state]
