"""One GRPO step: build examples from a batch, apply KL penalty and truncation, step the engine, collect metrics.

Always true: a batch without examples leaves the weights unchanged and never reaches the engine. A step with a
non-finite metric or logprob fails, because its weights may be non-finite too.
"""

import asyncio
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hermes_rl.core.errors import EndpointError
from hermes_rl.training.batch import training_batch
from hermes_rl.training.config import Schedule, TrainerSettings
from hermes_rl.training.engines.protocol import Adam, EngineError, Example, StepResult, TrainingEngine
from hermes_rl.training.loss import add_kl_penalty, truncate_importance_weights
from hermes_rl.training.metrics import batch_metrics, step_metrics
from hermes_rl.training.objectives import get_objective
from hermes_rl.training.policy import WeightsSampler
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
    """Computes group-relative advantages and takes one optimizer step."""

    def __init__(self, settings: TrainerSettings) -> None:
        self._settings = settings
        self._objective = get_objective(settings.loss)

    async def run(self, engine: TrainingEngine, groups: Sequence[bytes], *, step: int, version: int) -> StepOutcome:
        settings = self._settings
        # In a thread: the event loop also serves sampling requests.
        batch = await asyncio.to_thread(training_batch, groups, settings, version)
        metrics = batch_metrics(batch)
        if not batch.examples:
            return StepOutcome(metrics, changed=False)
        examples: Sequence[Example] = batch.examples
        reference = None
        if settings.kl_coef:
            reference = await _reference_logprobs(await engine.sampler(settings.kl_reference), examples)
            examples = add_kl_penalty(examples, reference, settings.kl_coef)
        if settings.max_importance_weight is not None:
            examples = truncate_importance_weights(
                examples, await engine.logprobs(examples), settings.max_importance_weight
            )
        examples = self._objective.reshape(examples)
        rate = learning_rate(settings, step)
        clip = (settings.clip_low, settings.clip_high) if self._objective.clips else None
        result = await engine.step(examples, self._objective.engine_loss, clip, _adam(settings, rate))
        _raise_if_non_finite(result)
        metrics |= step_metrics(batch, examples, result.logprobs, settings, rate, reference)
        metrics |= {f"engine/{name}": value for name, value in result.metrics.items()}
        return StepOutcome(metrics, changed=True)


async def _reference_logprobs(sampler: WeightsSampler, examples: Sequence[Example]) -> list[NDArray[np.float32]]:
    """Logprobs of the targets under the reference weights, one array per example."""
    slots = asyncio.Semaphore(MAX_REFERENCE_REQUESTS)

    async def score(example: Example) -> NDArray[np.float32]:
        ids = [*example.tokens.tolist(), int(example.targets[-1])]
        async with slots:
            return np.array((await sampler.logprobs(ids))[1:], np.float32)

    try:
        return list(await asyncio.gather(*map(score, examples)))
    except EndpointError as error:
        raise EngineError(f"cannot compute reference logprobs: {error}") from error


def _raise_if_non_finite(result: StepResult) -> None:
    non_finite = [name for name, value in result.metrics.items() if not math.isfinite(value)]
    if not all(np.isfinite(logprobs).all() for logprobs in result.logprobs):
        non_finite.append("logprobs")
    if non_finite:
        raise EngineError(f"non-finite {', '.join(non_finite)} in the step; try a lower learning rate")


def _adam(settings: TrainerSettings, rate: float) -> Adam:
    return Adam(
        rate,
        settings.adam_beta1,
        settings.adam_beta2,
        settings.adam_eps,
        settings.weight_decay,
        settings.grad_clip_norm,
    )
