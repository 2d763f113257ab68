"""Supervised fine-tuning on recorded rollouts: cross entropy on their sampled tokens, at the same engine as RL.

Always true: the run resumes from its last checkpoint and then takes the steps it would have taken; the checkpoint of
the last step is final. After any failure of the engine the run resumes in the same way, up to `step_retries` times.
"""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import numpy as np

from hermes_rl.console.config_options import merge_fields
from hermes_rl.console.live_display import warn
from hermes_rl.core.backoff import backoff_seconds
from hermes_rl.core.shutdown import Stopped, StopSignal
from hermes_rl.inference.tokens.tokenizer import load_tokenizer
from hermes_rl.training.aggregation import sequence_factors
from hermes_rl.training.checkpoints import Checkpoint, Lineage
from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.engines.protocol import CROSS_ENTROPY, EngineCheckpoint, EngineError, TrainingEngine
from hermes_rl.training.initial_weights import find_initial_weights
from hermes_rl.training.loss import sampled_mask
from hermes_rl.training.run import model_number, open_run_sinks, policy_opener, train_to_end
from hermes_rl.training.run_folder import RunFolder
from hermes_rl.training.sft_data import SftData, SftPlan, check_tokens
from hermes_rl.training.step import adam_parameters, learning_rate, raise_if_non_finite, scaled
from hermes_rl.training.trainer import (
    COMPLETE,
    FIRST_RETRY_S,
    MAX_RETRY_S,
    StepTimer,
    TrainingProgress,
    retry_or_fail,
)
from hermes_rl.training.utilization import BusyTimer


async def run_sft(
    settings: TrainerSettings,
    folder: RunFolder,
    stop: StopSignal,
    data: SftData,
    plan: SftPlan,
    on_step: Callable[[int, dict[str, float]], None] = lambda *_: None,
) -> dict[str, Any]:
    """Train to the last step or the stop signal, and return a summary."""
    settings = merge_fields(settings, {"total_steps": plan.total_steps}, "tinker")
    tokenizer = load_tokenizer(settings.tokenizer_name or settings.base_model)
    vocabulary = max(len(tokenizer), model_number(settings.base_model, "vocab_size") or 0)
    for warning in check_tokens(data, tokenizer, settings.base_model, vocabulary):
        warn(warning)
    last = 0

    def report_step(step: int, metrics: dict[str, float]) -> None:
        nonlocal last
        if step <= last:
            sinks.rewind_to(step - 1)
        last = step
        sinks.log(metrics, step)
        folder.update_state(step=step, version=trainer.progress.version)
        on_step(step, metrics)

    async with AsyncExitStack() as stack:
        batches = f"{data.digest()}/{plan.batch_size}/{plan.seed}"
        lineage = stack.enter_context(folder.acquire(settings, sft=batches))
        folder.update_state(environments=sorted(data.environments))
        if lineage.last is None:
            # Before anything is started.
            find_initial_weights(settings)
        last = lineage.last.step if lineage.last else 0
        sinks = await stack.enter_async_context(open_run_sinks(settings, folder, last))
        open_engine = policy_opener(settings, folder, tokenizer, BusyTimer())
        trainer = SftTrainer(settings, lineage, open_engine, data, plan, report_step)
        result = await train_to_end(trainer, stop, folder, lineage)
    return {**result, "rollouts": len(data.rollouts), "groups": data.groups, "skipped": dict(data.skipped)}


class SftTrainer:
    """One run. `open_engine` opens the policy of a checkpoint's state, or a new one for None."""

    def __init__(
        self,
        settings: TrainerSettings,
        lineage: Lineage,
        open_engine: Callable[[str | None], Coroutine[Any, Any, TrainingEngine]],
        data: SftData,
        plan: SftPlan,
        on_step: Callable[[int, dict[str, float]], None],
    ) -> None:
        self._settings, self._lineage, self._open_engine = settings, lineage, open_engine
        self._data, self._plan, self._on_step = data, plan, on_step
        self.progress = TrainingProgress(plan.total_steps)
        self._session_id = uuid.uuid4().hex[:8]

    async def run(self, stop: StopSignal) -> str:
        """Train to the last step or the stop signal; returns COMPLETE or the stop reason."""
        failed_at, failures = -1, 0
        while True:
            self._go_to_last_checkpoint()
            if self.progress.step >= self._plan.total_steps:
                return COMPLETE
            try:
                return await self._train(stop)
            except Stopped:
                return str(stop.reason)
            except EngineError as error:
                step = self.progress.step
                failed_at, failures = step, failures + 1 if step == failed_at else 1
                retry_or_fail(error, failures, step + 1, self._lineage.last, self._settings.step_retries)
                await asyncio.sleep(backoff_seconds(failures - 1, initial=FIRST_RETRY_S, maximum=MAX_RETRY_S))

    def _go_to_last_checkpoint(self) -> None:
        last = self._lineage.last
        self.progress.step, self.progress.version = (last.step, last.version) if last else (0, 0)

    async def _train(self, stop: StopSignal) -> str:
        last, progress = self._lineage.last, self.progress
        engine = await stop.run_until_stopped(self._open_engine(last.state if last else None))
        try:
            while progress.step < self._plan.total_steps:
                timer = StepTimer()
                metrics = await self._step(engine, progress.step)
                timer.lap("learn")
                progress.step += 1
                stopping = stop.reason
                if stopping is not None or self._checkpoint_due():
                    await self._checkpoint(engine)
                timer.lap("save")
                times = timer.metrics()
                rate = {"tokens/per_second": metrics["tokens/total"] / times["time/step"]}
                self._on_step(progress.step, metrics | rate | times)
                if stopping is not None and progress.step < self._plan.total_steps:
                    return stopping
            return COMPLETE
        finally:
            await engine.close()

    async def _step(self, engine: TrainingEngine, step: int) -> dict[str, float]:
        settings, rollouts = self._settings, self._data.rollouts
        batch = self._plan.batch(step)
        examples = [example for index in batch for example in rollouts[index]]
        factors = sequence_factors(
            examples, settings.loss_aggregation, settings.loss_constant or settings.max_token_trainer_length
        )
        rate = learning_rate(settings, step)
        sent = [scaled(example, example.advantages * factor) for example, factor in zip(examples, factors, strict=True)]
        result = await engine.step(sent, CROSS_ENTROPY, None, adam_parameters(settings, rate))
        raise_if_non_finite(result)
        logprobs = [
            float(row[sampled_mask(example)].sum(dtype=np.float64))
            for example, row in zip(examples, result.logprobs, strict=True)
        ]
        trained = sum(int(sampled_mask(example).sum()) for example in examples)
        return {
            "train/loss": -sum(factor * total for factor, total in zip(factors, logprobs, strict=True)),
            "train/learning_rate": rate,
            "train/epoch": step / self._plan.steps_per_epoch,
            "logprobs/mean_training": sum(logprobs) / trained,
            "rollouts/used": float(len(batch)),
            "sequences/used": float(len(examples)),
            "tokens/trained": float(trained),
            "tokens/total": float(sum(len(example.tokens) + 1 for example in examples)),
            **{f"engine/{name}": value for name, value in result.metrics.items()},
        }

    def _checkpoint_due(self) -> bool:
        step = self.progress.step
        return step % self._settings.checkpoint_interval == 0 or step == self._plan.total_steps

    async def _checkpoint(self, engine: TrainingEngine) -> None:
        step, progress = self.progress.step, self.progress
        saved = await engine.save(f"step-{step:06d}-{self._session_id}-{uuid.uuid4().hex[:4]}")
        progress.version = step
        final = step == self._plan.total_steps
        self._lineage.add(Checkpoint(step, step, (), saved.state, saved.sampler, final=final))
        for old in self._lineage.surplus(self._settings.keep_checkpoints):
            await engine.delete(EngineCheckpoint(old.state, old.sampler))
            self._lineage.mark_deleted(old)
