"""One step from one batch: examples, what the objective adds to them, the engine's step, and what it measured.

Always true: a batch that has nothing to learn from leaves the weights as they are; the engine is then not asked. A step
in which anything was no number is a failed one, since its weights may be none either.
"""

import asyncio
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hermes_rl.errors import EndpointError
from hermes_rl.training.engine import Adam, EngineError, Example, Stepped, TrainingEngine
from hermes_rl.training.examples import training_batch
from hermes_rl.training.measures import batch_measures, step_measures
from hermes_rl.training.objective import penalised, truncated
from hermes_rl.training.policy import Sampler
from hermes_rl.training.schedules import learning_rate
from hermes_rl.training.settings import Loss, TrainerSettings

# Questions for reference logprobs that are under way at once.
AT_ONCE = 32


class GroupLearning:
    """Learns from how the rollouts of a group compare with each other."""

    def __init__(self, settings: TrainerSettings) -> None:
        self._settings = settings

    async def learn(
        self, engine: TrainingEngine, groups: Sequence[bytes], *, step: int, version: int
    ) -> dict[str, float]:
        settings = self._settings
        # Beside the event loop, on which others sample.
        batch = await asyncio.to_thread(training_batch, groups, settings, version)
        metrics = batch_measures(batch)
        if not batch.examples:
            return metrics
        examples: Sequence[Example] = batch.examples
        reference = None
        if settings.kl_coef:
            reference = await _reference(await engine.sampler(settings.kl_reference), examples)
            examples = penalised(examples, reference, settings.kl_coef)
        if settings.max_importance_weight is not None:
            examples = truncated(examples, await engine.logprobs(examples), settings.max_importance_weight)
        rate = learning_rate(settings, step)
        stepped = await engine.step(examples, settings.loss, _clip(settings), _adam(settings, rate))
        _refuse_no_numbers(stepped)
        metrics |= step_measures(batch, examples, stepped.logprobs, settings, rate, reference)
        return metrics | {f"engine/{name}": value for name, value in stepped.metrics.items()}


async def _reference(sampler: Sampler, examples: Sequence[Example]) -> list[NDArray[np.float32]]:
    """The logprobs of the targets under other weights."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def scored(example: Example) -> NDArray[np.float32]:
        ids = [*example.tokens.tolist(), int(example.targets[-1])]
        async with slots:
            return np.array((await sampler.logprobs(ids))[1:], np.float32)

    try:
        return list(await asyncio.gather(*map(scored, examples)))
    except EndpointError as error:
        raise EngineError(f"no logprobs of the reference: {error}") from error


def _refuse_no_numbers(stepped: Stepped) -> None:
    broken = [name for name, value in stepped.metrics.items() if not math.isfinite(value)]
    if not all(np.isfinite(one).all() for one in stepped.logprobs):
        broken.append("logprobs")
    if broken:
        raise EngineError(f"the step gave {', '.join(broken)} that are no numbers; a lower learning rate may help")


def _clip(settings: TrainerSettings) -> tuple[float, float] | None:
    return None if settings.loss is Loss.IMPORTANCE_SAMPLING else (settings.clip_low, settings.clip_high)


def _adam(settings: TrainerSettings, rate: float) -> Adam:
    return Adam(
        rate,
        settings.adam_beta1,
        settings.adam_beta2,
        settings.adam_eps,
        settings.weight_decay,
        settings.grad_clip_norm,
    )
