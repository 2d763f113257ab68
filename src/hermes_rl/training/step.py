"""One GRPO step: build examples, add teacher and KL penalty, scale by the loss aggregation, step the engine.

Always true: a batch without examples leaves the weights unchanged and never reaches the engine. A step with a
non-finite metric or logprob fails, because its weights may be non-finite too.
"""

import asyncio
import math
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hermes_rl.core.errors import EndpointError
from hermes_rl.training.aggregation import sequence_factors
from hermes_rl.training.batch import Origin, training_batch
from hermes_rl.training.config import Schedule, TrainerSettings
from hermes_rl.training.engines.protocol import Adam, EngineError, Example, StepResult, TrainingEngine
from hermes_rl.training.loss import add_kl_penalty, add_teacher_advantage, sampled_mask
from hermes_rl.training.metrics import batch_metrics, step_metrics
from hermes_rl.training.objectives import PLAIN_LOSS, TrainedSequence, get_objective, trained_sequence
from hermes_rl.training.teacher import TokenScorer, WeightsAtEngine, find_teacher
from hermes_rl.training.trainer import StepOutcome


def learning_rate(settings: TrainerSettings, step: int) -> float:
    """Learning rate of the 0-based `step`.

    Never 0 within the run, since a step of size 0 would waste a batch; a decaying schedule reaches 0 one step later.
    """
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    progress = min((step - settings.warmup_steps) / (settings.total_steps - settings.warmup_steps), 1.0)
    match settings.lr_schedule:
        case Schedule.CONSTANT:
            return settings.learning_rate
        case Schedule.LINEAR:
            return settings.learning_rate * (1 - progress)
        case Schedule.COSINE:
            return settings.learning_rate * (1 + math.cos(math.pi * progress)) / 2


# Concurrent requests for reference logprobs.
MAX_REFERENCE_REQUESTS = 32


class GRPOStep:
    """Computes group-relative advantages and takes one optimizer step, or `num_substeps` of them."""

    def __init__(self, settings: TrainerSettings) -> None:
        self._settings = settings
        self._objective = get_objective(settings)
        self._teacher = find_teacher(settings)

    async def run(self, engine: TrainingEngine, groups: Sequence[bytes], *, step: int, version: int) -> StepOutcome:
        settings = self._settings
        # In a thread: the event loop also serves sampling requests.
        batch = await asyncio.to_thread(training_batch, groups, settings, version)
        metrics = batch_metrics(batch)
        if not batch.examples:
            return StepOutcome(metrics, changed=False)
        examples: Sequence[Example] = batch.examples
        teacher = reference = None
        if self._teacher is not None:
            teacher = await _reference_logprobs("the teacher's", self._teacher.open(engine), examples)
            examples = add_teacher_advantage(examples, teacher, settings.teacher_coef, settings.reward_coef)
        if settings.kl_coef:
            weights = WeightsAtEngine(settings.kl_reference)
            reference = await _reference_logprobs("reference", weights.open(engine), examples)
            examples = add_kl_penalty(examples, reference, settings.kl_coef)
        rate = learning_rate(settings, step)
        trained: list[TrainedSequence] = []
        losses: list[float] = []
        engine_metrics: dict[str, float] = {}
        for part in substeps([origin.outcome.group for origin in batch.origins], settings.num_substeps):
            chosen = [examples[index] for index in part], [batch.origins[index] for index in part]
            result, sequences, loss = await self._substep(engine, *chosen, adam_parameters(settings, rate))
            trained += sequences
            losses.append(loss)
            engine_metrics |= result.metrics
        metrics |= step_metrics(trained, self._objective, losses, rate, reference, teacher)
        metrics |= {f"engine/{name}": value for name, value in engine_metrics.items()}
        return StepOutcome(metrics, changed=True)

    async def _substep(
        self, engine: TrainingEngine, examples: Sequence[Example], origins: Sequence[Origin], adam: Adam
    ) -> tuple[StepResult, list[TrainedSequence], float]:
        """One optimizer step; returns its result, the sequences with the logprobs before it, and its loss."""
        settings, objective = self._settings, self._objective
        factors = sequence_factors(
            examples, settings.loss_aggregation, settings.loss_constant or settings.max_token_trainer_length
        )
        engine_loss = objective.engine_loss
        if engine_loss is not None:
            sent = [
                scaled(example, example.advantages * factor) for example, factor in zip(examples, factors, strict=True)
            ]
        else:
            current = await engine.logprobs(examples)
            weights = objective.weights(_sequences(examples, origins, current))
            engine_loss = PLAIN_LOSS
            # With the current logprobs as those of sampling, the engine's ratio is 1: the gradient has these weights.
            sent = [
                scaled(example, weight * factor, logprobs)
                for example, weight, factor, logprobs in zip(examples, weights, factors, current, strict=True)
            ]
        result = await engine.step(sent, engine_loss.name, engine_loss.clip, adam)
        raise_if_non_finite(result)
        sequences = _sequences(examples, origins, result.logprobs)
        token_losses = objective.losses(sequences)
        return (
            result,
            sequences,
            sum(float(row.sum()) * factor for row, factor in zip(token_losses, factors, strict=True)),
        )


def substeps(groups: Sequence[int], count: int) -> list[list[int]]:
    """Split the indices of a batch into at most `count` parts; sequences of one group stay together."""
    parts = np.array_split(sorted(set(groups)), count)
    return [[index for index, group in enumerate(groups) if group in part] for part in parts if len(part)]


def scaled(example: Example, advantages: NDArray[np.floating], logprobs: NDArray[np.floating] | None = None) -> Example:
    """The example with other advantages, and with other sampling logprobs if given."""
    sampled = sampled_mask(example)
    old = example.logprobs if logprobs is None else np.where(sampled, logprobs, 0.0).astype(np.float32)
    return replace(example, advantages=advantages.astype(np.float32), logprobs=old)


def _sequences(
    examples: Sequence[Example], origins: Sequence[Origin], logprobs: Sequence[NDArray[np.float32]]
) -> list[TrainedSequence]:
    return [
        trained_sequence(
            example,
            current,
            group=origin.outcome.group,
            rollout=origin.outcome.rollout,
            score=origin.outcome.score,
        )
        for example, origin, current in zip(examples, origins, logprobs, strict=True)
    ]


async def _reference_logprobs(
    whose: str, opened: AbstractAsyncContextManager[TokenScorer], examples: Sequence[Example]
) -> list[NDArray[np.float32]]:
    """Logprobs of the targets under other weights, one array per example."""
    slots = asyncio.Semaphore(MAX_REFERENCE_REQUESTS)

    async def score(scorer: TokenScorer, example: Example) -> NDArray[np.float32]:
        ids = [*example.tokens.tolist(), int(example.targets[-1])]
        async with slots:
            return np.array((await scorer.logprobs(ids))[1:], np.float32)

    try:
        async with opened as scorer:
            rows = await asyncio.gather(*(score(scorer, example) for example in examples))
    except EndpointError as error:
        raise EngineError(f"cannot compute {whose} logprobs: {error}") from error
    for example, row in zip(examples, rows, strict=True):
        if row.shape != example.targets.shape or not np.isfinite(row[sampled_mask(example)]).all():
            raise EngineError(f"{whose} logprobs are incomplete or non-finite")
    return rows


def raise_if_non_finite(result: StepResult) -> None:
    non_finite = [name for name, value in result.metrics.items() if not math.isfinite(value)]
    if not all(np.isfinite(logprobs).all() for logprobs in result.logprobs):
        non_finite.append("logprobs")
    if non_finite:
        raise EngineError(f"non-finite {', '.join(non_finite)} in the step; try a lower learning rate")


def adam_parameters(settings: TrainerSettings, rate: float) -> Adam:
    return Adam(
        rate,
        settings.adam_beta1,
        settings.adam_beta2,
        settings.adam_eps,
        settings.weight_decay,
        settings.grad_clip_norm,
    )
