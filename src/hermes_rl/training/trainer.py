"""The trainer: lease a batch, take a step, checkpoint, acknowledge the batch, publish the new policy version.

Always true: in the lineage of the weights each batch made exactly one step; a batch is acknowledged only when a
checkpoint on the engine's disk contains its step; a version names one set of weights and is never reused. A batch with
nothing to train on is a step too, so that a run without signal ends, but makes no version: it is recorded and
acknowledged at once. After any failure the run resumes from its last checkpoint, as after a restart; too many failures
at one step fail the run.
"""

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from hermes_rl import tracing
from hermes_rl.api.client.connection import ApiError
from hermes_rl.api.client.trainer import TrainerClient
from hermes_rl.api.schemas import LeasedBatch
from hermes_rl.core.backoff import backoff_seconds
from hermes_rl.core.errors import HermesRLError
from hermes_rl.core.shutdown import Stopped, StopSignal
from hermes_rl.training.checkpoints import Checkpoint, Lineage
from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.engines.protocol import EngineCheckpoint, EngineError, TrainingEngine

log = logging.getLogger(__name__)

COMPLETE = "complete"
# Long-poll duration of one lease request.
LEASE_WAIT_S = 30.0
FIRST_RETRY_S, MAX_RETRY_S = 1.0, 30.0


class RunFailedError(HermesRLError):
    """The run cannot continue; its last checkpoint is preserved."""


class StepOutcome(NamedTuple):
    """`changed` is whether the weights changed: false for a batch with nothing to train on."""

    metrics: dict[str, float]
    changed: bool


class TrainingStep(Protocol):
    async def run(self, engine: TrainingEngine, groups: Sequence[bytes], *, step: int, version: int) -> StepOutcome:
        """Take one step on a batch. Raises EngineError when the engine fails."""
        ...


class WeightSync(Protocol):
    """Makes new weights the policy that is sampled from."""

    async def publish(self, version: int, engine: TrainingEngine, sampler: str) -> None: ...

    def withdraw(self) -> None:
        """The engine is lost: nothing can be sampled until the next version."""
        ...

    def samplers_in_use(self) -> frozenset[str]:
        """Paths at the engine of versions that evaluations hold; they must not be deleted."""
        ...


@dataclass(slots=True)
class TrainingProgress:
    """Progress of a run, for display. `version` is the policy version, `state` a phrase."""

    total_steps: int
    step: int = 0
    version: int = 0
    state: str = "starting"


class Trainer:
    """One training run. `open_engine` opens the policy of a checkpoint's state, or a new one for None.

    Given `on_complete`, the trainer calls it after the last step and then waits for the stop signal.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        lineage: Lineage,
        client: TrainerClient,
        open_engine: Callable[[str | None], Awaitable[TrainingEngine]],
        training_step: TrainingStep,
        weight_sync: WeightSync,
        on_step: Callable[[int, dict[str, float]], None],
        on_complete: Callable[[], None] | None = None,
    ) -> None:
        self._settings, self._lineage, self._client = settings, lineage, client
        self._open_engine, self._training_step, self._weight_sync = open_engine, training_step, weight_sync
        self._on_step, self._on_complete = on_step, on_complete
        self.progress = TrainingProgress(settings.total_steps)
        self._engine: TrainingEngine | None = None
        self._lost: EngineError | None = None
        self._engine_lost = asyncio.Event()
        self._pending: deque[LeasedBatch] = deque()
        self._sampler = ""
        """The sampler of the published version."""
        self._unsaved = self._unpublished = False
        """Whether the weights changed since the last checkpoint, and since the last version."""
        self._session_id = uuid.uuid4().hex[:8]

    async def run(self, stop: StopSignal) -> str:
        """Train to the last step or the stop signal; returns COMPLETE or the stop reason."""
        failed_at, failures = -1, 0
        try:
            while True:
                try:
                    await stop.run_until_stopped(self._restore())
                    return await self._train(stop)
                except Stopped:
                    return str(stop.reason)
                except (EngineError, ApiError) as error:
                    failures = failures + 1 if self.progress.step == failed_at else 1
                    failed_at = self.progress.step
                    self._retry_or_fail(error, failures)
                    self.progress.state = f"resuming from the last checkpoint: {error}"
                    await asyncio.sleep(backoff_seconds(failures - 1, initial=FIRST_RETRY_S, maximum=MAX_RETRY_S))
        finally:
            await self._close_engine()

    def engine_lost(self, error: EngineError) -> None:
        """Called by weight sync when the engine has lost the policy, which a waiting trainer would not notice."""
        self._lost = error
        self._engine_lost.set()

    def _retry_or_fail(self, error: HermesRLError, failures: int) -> None:
        self._weight_sync.withdraw()
        retry_or_fail(error, failures, self.progress.step + 1, self._lineage.last, self._settings.step_retries)

    async def _restore(self) -> None:
        """Restore weights, leased batches, version and sampler from the last checkpoint, or start from scratch."""
        self.progress.state = "waiting for the trajectory API"
        settings, client = self._settings, self._client
        # With total_steps the API grants no rollouts beyond what is trained on.
        await client.register(
            settings.batch_size, settings.max_staleness, settings={"total_steps": settings.total_steps}
        )
        known = await client.version()
        self.progress.state = "waiting for the engine"
        await self._close_engine()
        self._lost = None
        self._engine_lost.clear()
        self._unsaved = self._unpublished = False
        last = self._lineage.last
        self._engine = engine = await self._open_engine(last.state if last else None)
        # Weights keep their version, unless the API knows a later one, of rolled-back weights or another run.
        version = last.version if last else 0
        version = known + 1 if known > version else version
        if last is None:
            last = self._record(0, version, [], await engine.save(self._name(0)))
            sampler = last.sampler
        else:
            # The engine samples only from weights that the current process saved.
            sampler = await engine.save_sampler(self._name(last.step))
        await self._recover_leases(last)
        self.progress.step = last.step
        await self._publish(version, sampler, known=known)

    async def _recover_leases(self, last: Checkpoint) -> None:
        """Acknowledge the checkpoint's batches; other leased batches are trained on first."""
        try:
            await self._client.acknowledge(*last.batches)
        except ApiError as error:
            # The API has another store, or leased the batches to another trainer.
            log.warning("cannot acknowledge the batches of step %d: %s", last.step, error)
        trained = self._lineage.batches
        # An interrupted lease request may have been granted; another one makes the lease visible below.
        await self._client.lease(wait=0)
        loaned = [number for number in await self._client.on_loan() if number not in trained]
        self._pending = deque([await self._client.batch(number) for number in loaned])

    async def _train(self, stop: StopSignal) -> str:
        while self.progress.step < self._settings.total_steps:
            await self._train_to_checkpoint(stop)
            if stop.reason is not None:
                return stop.reason
        await self._finish()
        if self._on_complete is not None:
            self._on_complete()
            try:
                await stop.run_until_stopped(self._engine_lost.wait())
            except Stopped:
                return COMPLETE
            raise self._lost or EngineError("the engine is lost")
        return COMPLETE

    async def _train_to_checkpoint(self, stop: StopSignal) -> None:
        """Take steps until a checkpoint is due, and save it; a stop signal brings it forward."""
        engine, batches = self._current_engine(), list[int]()
        async with AsyncExitStack() as leases:
            due = False
            while not due:
                timer = StepTimer()
                try:
                    batch = await stop.run_until_stopped(self._next_batch())
                except Stopped:
                    if batches:
                        await self._checkpoint(engine, batches)
                    return
                await leases.enter_async_context(self._client.held(batch))
                timer.lap("wait")
                with tracing.span("step") as span:
                    metrics, changed = await self._step(engine, batch, timer)
                    batches.append(batch.id)
                    # The API counts unacknowledged batches of the current version as rollouts in progress: without a
                    # new version it would soon grant no more.
                    due = not changed or self._checkpoint_due() or stop.reason is not None
                    if due:
                        await self._checkpoint(engine, batches)
                    else:
                        await self._publish(self.progress.version + 1, await engine.save_sampler(self._name()))
                    span.set_attributes(step=self.progress.step, batch=batch.id, version=self.progress.version)
                timer.lap("save")
                metrics["policy/version"] = float(self.progress.version)
                self._on_step(self.progress.step, metrics | timer.metrics())

    def _checkpoint_due(self) -> bool:
        step, settings = self.progress.step, self._settings
        return step % settings.checkpoint_interval == 0 or step >= settings.total_steps

    async def _next_batch(self) -> LeasedBatch:
        """A batch leased before the restart, else the next one. Raises EngineError when the engine is lost."""
        self.progress.state = "waiting for a batch"
        if self._pending:
            return self._pending.popleft()
        while self._lost is None:
            leasing = asyncio.create_task(self._client.lease(wait=LEASE_WAIT_S))
            lost = asyncio.create_task(self._engine_lost.wait())
            try:
                await asyncio.wait({leasing, lost}, return_when=asyncio.FIRST_COMPLETED)
                if leasing.done() and (batch := leasing.result()) is not None:
                    return batch
            finally:
                leasing.cancel()
                lost.cancel()
                await asyncio.wait({leasing, lost})
        raise self._lost

    async def _step(self, engine: TrainingEngine, batch: LeasedBatch, timer: "StepTimer") -> StepOutcome:
        progress = self.progress
        progress.state = "training"
        groups = [group async for group in self._client.groups(batch)]
        timer.lap("read")
        outcome = await self._training_step.run(engine, groups, step=progress.step, version=progress.version)
        timer.lap("learn")
        progress.step += 1
        if outcome.changed:
            self._unsaved = self._unpublished = True
        else:
            log.warning(
                "step %d: nothing to train on in batch %d; the weights and version %d stay",
                *(progress.step, batch.id, progress.version),
            )
        return outcome

    async def _checkpoint(self, engine: TrainingEngine, batches: Sequence[int]) -> None:
        """Save the weights, unless the last checkpoint has them; publish them, unless they are published."""
        progress, last, new = self.progress, self._lineage.last, self._unpublished
        progress.state = "saving"
        if self._unsaved or last is None:
            saved = await engine.save(self._name(), sampler=None if new else self._sampler)
        else:
            saved = EngineCheckpoint(last.state, self._sampler)
        version = progress.version + 1 if new else progress.version
        self._record(progress.step, version, batches, saved)
        self._unsaved = False
        await self._client.acknowledge(*batches)
        if new:
            await self._publish(version, saved.sampler)
        for old in self._lineage.surplus(self._settings.keep_checkpoints):
            # A held one is deleted after a later checkpoint.
            if old.sampler not in self._weight_sync.samplers_in_use():
                await engine.delete(EngineCheckpoint(old.state, old.sampler))
                self._lineage.mark_deleted(old)

    def _record(
        self, step: int, version: int, batches: Sequence[int], saved: EngineCheckpoint, *, final: bool = False
    ) -> Checkpoint:
        checkpoint = Checkpoint(step, version, tuple(batches), saved.state, saved.sampler, final=final)
        self._lineage.add(checkpoint)
        return checkpoint

    async def _publish(self, version: int, sampler: str, *, known: int = -1) -> None:
        """Set the version at the API first, so that no other weights can be sampled under it."""
        self.progress.state = "publishing"
        if version != known:
            await self._client.set_version(version)
        self.progress.version, self._sampler, self._unpublished = version, sampler, False
        await self._weight_sync.publish(version, self._current_engine(), sampler)

    async def _finish(self) -> None:
        """Save the last weights once more as the final checkpoint, which is never deleted."""
        last = self._lineage.last
        if last is not None and not last.final:
            saved = await self._current_engine().save(f"final-{self._session_id}")
            self._record(last.step, last.version, (), saved, final=True)
        self.progress.state = COMPLETE

    async def _close_engine(self) -> None:
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await engine.close()

    def _current_engine(self) -> TrainingEngine:
        if self._engine is None:
            raise RuntimeError("the trainer has no engine yet")
        return self._engine

    def _name(self, step: int | None = None) -> str:
        """A unique checkpoint name: saving the same step again never overwrites it."""
        return f"step-{self.progress.step if step is None else step:06d}-{self._session_id}-{uuid.uuid4().hex[:4]}"


def retry_or_fail(error: HermesRLError, failures: int, step: int, last: Checkpoint | None, retries: int) -> None:
    """Log a failed step that is worth another try; raise RunFailedError for one that is not."""
    if failures > retries or (isinstance(error, EngineError) and error.permanent):
        saved = f"the checkpoint of step {last.step} is saved" if last else "there is no checkpoint yet"
        raise RunFailedError(
            f"step {step} failed {failures} times: {error}; {saved}: fix the cause and run the same command again"
        ) from error
    log.warning("step %d failed (%d of %d): %s", step, failures, retries + 1, error)


class StepTimer:
    """Splits the wall time of a step into laps."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self._laps[name], self._last = now - self._last, now

    def metrics(self) -> dict[str, float]:
        return {f"time/{name}": seconds for name, seconds in self._laps.items()} | {
            "time/step": self._last - self._began
        }
