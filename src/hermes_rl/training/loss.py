"""Importance ratios, and the terms that are applied to examples before the engine's loss.

Always true: only sampled tokens count; input examples are never modified; finite inputs give finite outputs, because
importance ratios are capped at exp(80).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hermes_rl.training.engines.protocol import Example

# float32 overflows at exp(88).
MAX_LOG_RATIO = 80.0


def sampled_mask(example: Example) -> NDArray[np.bool_]:
    return np.asarray(example.mask != 0)


def importance_ratios(example: Example, logprobs: NDArray[np.float32]) -> NDArray[np.float64]:
    """Per target, the current probability over the sampling probability; 1 where nothing was sampled."""
    log_ratio = np.where(sampled_mask(example), logprobs.astype(np.float64) - example.logprobs, 0.0)
    return np.asarray(np.exp(np.minimum(log_ratio, MAX_LOG_RATIO)))


def add_kl_penalty(
    examples: Sequence[Example], reference: Sequence[NDArray[np.float32]], coefficient: float
) -> list[Example]:
    """Add a KL penalty against the reference to the advantages.

    The batch mean of the log ratio is subtracted, so the penalty sums to 0 over the batch: tokens whose log ratio is
    above the mean lose advantage, the others gain. Apply before `truncate_importance_weights`, so that the penalty is
    reweighted too.
    """
    log_ratios = [
        np.where(sampled_mask(example), example.logprobs.astype(np.float64) - other, 0.0)
        for example, other in zip(examples, reference, strict=True)
    ]
    count = sum(int(sampled_mask(example).sum()) for example in examples)
    mean = sum(float(log_ratio.sum()) for log_ratio in log_ratios) / max(count, 1)
    return [
        replace(
            example,
            advantages=np.where(
                sampled_mask(example), example.advantages + coefficient * (mean - log_ratio), 0.0
            ).astype(np.float32),
        )
        for example, log_ratio in zip(examples, log_ratios, strict=True)
    ]


def truncate_importance_weights(
    examples: Sequence[Example], logprobs: Sequence[NDArray[np.float32]], max_weight: float
) -> list[Example]:
    """Reweight each token by its importance ratio, truncated at `max_weight`.

    Without truncation a few tokens can dominate the step when the numerics of sampler and trainer differ. `logprobs`
    are the current ones and replace those of the examples, so the engine's own importance ratio starts at 1.
    """
    return [
        replace(
            example,
            logprobs=np.where(sampled_mask(example), current, 0.0).astype(np.float32),
            advantages=(example.advantages * np.minimum(importance_ratios(example, current), max_weight)).astype(
                np.float32
            ),
        )
        for example, current in zip(examples, logprobs, strict=True)
    ]
