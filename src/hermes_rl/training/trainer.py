"""The trainer: batches leased, learned from, kept in a checkpoint and acknowledged, and the new policy published.

Always true: in the lineage of the weights each batch made exactly one step; a batch is acknowledged only when a
checkpoint on the engine's disk holds what was learned from it; a version names one set of weights and is never used
twice. Whatever fails, the run goes back to its last checkpoint, as a run that is started again does; one that fails too
often at the same step has failed, and says so.
"""

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Protocol

from hermes_rl import tracing
from hermes_rl.api.client.connection import ApiError
from hermes_rl.api.client.trainer import TrainerClient
from hermes_rl.api.wire import LeasedBatch
from hermes_rl.errors import HermesRLError
from hermes_rl.stopping import Stop, Stopped
from hermes_rl.training.engine import EngineError, Saved, TrainingEngine
from hermes_rl.training.lineage import Checkpoint, Lineage
from hermes_rl.training.settings import TrainerSettings
from hermes_rl.waiting import pause

log = logging.getLogger(__name__)

COMPLETE = "complete"
# How long a question for a batch takes before it is looked whether to stop.
WAIT = 30.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0


class RunFailedError(HermesRLError):
    """The run cannot go on; what it learned up to its last checkpoint is kept."""


class Learning(Protocol):
    async def learn(
        self, engine: TrainingEngine, groups: Sequence[bytes], *, step: int, version: int
    ) -> dict[str, float]:
        """Take one step from a batch; its metrics. EngineError where the engine fails."""
        ...


class Publishing(Protocol):
    """Whoever samples from the weights in training."""

    async def publish(self, version: int, engine: TrainingEngine, sampler: str) -> None: ...

    def withdraw(self) -> None:
        """The engine is gone: nothing can be sampled until the next version."""
        ...


@dataclass(slots=True)
class Progress:
    """How far a run is, for whoever watches. `version` is the policy's; `state` is in words."""

    total_steps: int
    step: int = 0
    version: int = 0
    state: str = "starting"


class Trainer:
    """One run in this process. `open_engine` gives a policy from a checkpoint's state, or a new one.

    `stay` is called after the last step where the policy is to be sampled from until it is told to stop.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        lineage: Lineage,
        client: TrainerClient,
        open_engine: Callable[[str | None], Awaitable[TrainingEngine]],
        learning: Learning,
        publishing: Publishing,
        told: Callable[[int, dict[str, float]], None],
        stay: Callable[[], None] | None = None,
    ) -> None:
        self._stay = stay
        self._settings, self._lineage, self._client = settings, lineage, client
        self._open_engine, self._learning, self._publishing, self._told = open_engine, learning, publishing, told
        self.progress = Progress(settings.total_steps)
        self._engine: TrainingEngine | None = None
        self._lost: EngineError | None = None
        self._news = asyncio.Event()
        self._todo: deque[LeasedBatch] = deque()
        self._life = uuid.uuid4().hex[:8]

    async def run(self, stop: Stop) -> str:
        """Train to the last step, or until it is told to stop; COMPLETE, or why it ended."""
        failed_at, failures = -1, 0
        try:
            while True:
                try:
                    await stop.unless(self._begin())
                    return await self._train(stop)
                except Stopped:
                    return str(stop.reason)
                except (EngineError, ApiError) as error:
                    failures = failures + 1 if self.progress.step == failed_at else 1
                    failed_at = self.progress.step
                    self._give_up_on(error, failures)
                    self.progress.state = f"going back to the last checkpoint: {error}"
                    await asyncio.sleep(pause(failures - 1, first=FIRST_PAUSE, longest=LONGEST_PAUSE))
        finally:
            await self._leave_engine()

    def engine_lost(self, error: EngineError) -> None:
        """Somebody who samples found that the engine has lost the policy, which a trainer that waits does not see."""
        self._lost = error
        self._news.set()

    def _give_up_on(self, error: HermesRLError, failures: int) -> None:
        self._publishing.withdraw()
        step, last = self.progress.step + 1, self._lineage.last
        if failures > self._settings.step_retries or (isinstance(error, EngineError) and error.lasting):
            kept = f"the checkpoint of step {last.step} is kept" if last else "nothing was learned yet"
            raise RunFailedError(
                f"step {step} failed {failures} times: {error}; {kept}: mend it and start the same command again"
            ) from error
        log.warning("step %d failed (%d of %d): %s", step, failures, self._settings.step_retries + 1, error)

    async def _begin(self) -> None:
        """From the last checkpoint, or anew: the engine's weights, what is on loan, the version, the sampler."""
        self.progress.state = "waiting for the trajectory API"
        settings, client = self._settings, self._client
        await client.register(settings.batch_size, settings.max_staleness)
        known = await client.version()
        self.progress.state = "waiting for the engine"
        await self._leave_engine()
        self._lost = None
        self._news.clear()
        last = self._lineage.last
        self._engine = engine = await self._open_engine(last.state if last else None)
        # Weights keep their number, unless the API has heard of later ones: those were rolled back, or another run's.
        version = last.version if last else 0
        version = known + 1 if known > version else version
        if last is None:
            last = self._keep(0, version, [], await engine.save(self._name(0)))
            sampler = last.sampler
        else:
            # The engine samples only from what it saved in its own life.
            sampler = await engine.save_sampler(self._name(last.step))
        await self._settle_loans(last)
        self.progress.step = last.step
        await self._publish(version, sampler, known=known)

    async def _settle_loans(self, last: Checkpoint) -> None:
        """Acknowledge what the checkpoint holds; what was on loan besides is learned from first."""
        try:
            await self._client.acknowledge(*last.batches)
        except ApiError as error:
            # Of an API with another store, or of one that gave them to somebody else.
            log.warning("batches of step %d cannot be acknowledged: %s", last.step, error)
        learned = self._lineage.batches
        # A question for a batch that was broken off may have been granted: asked again it is on loan for sure.
        await self._client.lease(wait=0)
        loaned = [number for number in await self._client.on_loan() if number not in learned]
        self._todo = deque([await self._client.batch(number) for number in loaned])

    async def _train(self, stop: Stop) -> str:
        while self.progress.step < self._settings.total_steps:
            await self._to_next_checkpoint(stop)
            if stop.reason is not None:
                return stop.reason
        await self._finish()
        if self._stay is not None:
            self._stay()
            try:
                await stop.unless(self._news.wait())
            except Stopped:
                return COMPLETE
            raise self._lost or EngineError("the engine is lost")
        return COMPLETE

    async def _to_next_checkpoint(self, stop: Stop) -> None:
        """Steps until a checkpoint is due, and the checkpoint; one that is told to stop comes earlier."""
        engine, batches = self._started(), list[int]()
        async with AsyncExitStack() as held:
            due = False
            while not due:
                clock = Clock()
                try:
                    batch = await stop.unless(self._next_batch())
                except Stopped:
                    if batches:
                        await self._checkpoint(engine, batches)
                    return
                await held.enter_async_context(self._client.held(batch))
                clock.lap("wait")
                with tracing.span("step") as span:
                    metrics = await self._step(engine, batch, clock)
                    batches.append(batch.id)
                    due = self._is_due() or stop.reason is not None
                    if due:
                        await self._checkpoint(engine, batches)
                    else:
                        await self._publish(self.progress.version + 1, await engine.save_sampler(self._name()))
                    span.note(step=self.progress.step, batch=batch.id, version=self.progress.version)
                clock.lap("save")
                self._told(self.progress.step, metrics | clock.metrics())

    def _is_due(self) -> bool:
        step, settings = self.progress.step, self._settings
        return step % settings.checkpoint_interval == 0 or step >= settings.total_steps

    async def _next_batch(self) -> LeasedBatch:
        """What was on loan already, else the next; EngineError when the engine is lost meanwhile."""
        self.progress.state = "waiting for a batch"
        if self._todo:
            return self._todo.popleft()
        while self._lost is None:
            leasing, news = asyncio.create_task(self._client.lease(wait=WAIT)), asyncio.create_task(self._news.wait())
            try:
                await asyncio.wait({leasing, news}, return_when=asyncio.FIRST_COMPLETED)
                if leasing.done() and (batch := leasing.result()) is not None:
                    return batch
            finally:
                leasing.cancel()
                news.cancel()
                await asyncio.wait({leasing, news})
        raise self._lost

    async def _step(self, engine: TrainingEngine, batch: LeasedBatch, clock: "Clock") -> dict[str, float]:
        progress = self.progress
        progress.state = "learning"
        groups = [group async for group in self._client.groups(batch)]
        clock.lap("read")
        metrics = await self._learning.learn(engine, groups, step=progress.step, version=progress.version)
        clock.lap("learn")
        progress.step += 1
        return metrics

    async def _checkpoint(self, engine: TrainingEngine, batches: Sequence[int]) -> None:
        self.progress.state = "saving"
        saved = await engine.save(self._name())
        version = self.progress.version + 1
        self._keep(self.progress.step, version, batches, saved)
        await self._client.acknowledge(*batches)
        await self._publish(version, saved.sampler)
        for old in self._lineage.surplus(self._settings.keep_checkpoints):
            await engine.delete(Saved(old.state, old.sampler))
            self._lineage.note_deleted(old)

    def _keep(
        self, step: int, version: int, batches: Sequence[int], saved: Saved, *, final: bool = False
    ) -> Checkpoint:
        checkpoint = Checkpoint(step, version, tuple(batches), saved.state, saved.sampler, final=final)
        self._lineage.add(checkpoint)
        return checkpoint

    async def _publish(self, version: int, sampler: str, *, known: int = -1) -> None:
        """The API first: nobody may sample under a number that another set of weights could still get."""
        self.progress.state = "publishing"
        if version != known:
            await self._client.set_version(version)
        self.progress.version = version
        await self._publishing.publish(version, self._started(), sampler)

    async def _finish(self) -> None:
        """The last weights once more under a name of their own, which no keep policy removes."""
        last = self._lineage.last
        if last is not None and not last.final:
            saved = await self._started().save(f"final-{self._life}")
            self._keep(last.step, last.version, (), saved, final=True)
        self.progress.state = COMPLETE

    async def _leave_engine(self) -> None:
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await engine.close()

    def _started(self) -> TrainingEngine:
        if self._engine is None:
            raise RuntimeError("the trainer has no engine yet")
        return self._engine

    def _name(self, step: int | None = None) -> str:
        """Of a checkpoint. Another life that saves the same step does not write over it."""
        return f"step-{self.progress.step if step is None else step:06d}-{self._life}-{uuid.uuid4().hex[:4]}"


class Clock:
    """What the time of a step went into."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """The time since the last lap was for this."""
        now = time.monotonic()
        self._laps[name], self._last = now - self._last, now

    def metrics(self) -> dict[str, float]:
        return {f"time/{name}": seconds for name, seconds in self._laps.items()} | {
            "time/step": self._last - self._began
        }
