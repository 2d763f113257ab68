"""What is added to the advantages before the loss: the KL penalty, and the advantage of a teacher.

Always true: only sampled tokens count; input examples are never modified.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hermes_rl.training.engines.protocol import Example


def sampled_mask(example: Example) -> NDArray[np.bool_]:
    return np.asarray(example.mask != 0)


def add_kl_penalty(
    examples: Sequence[Example], reference: Sequence[NDArray[np.float32]], coefficient: float
) -> list[Example]:
    """Add a KL penalty against the reference to the advantages.

    The batch mean of the log ratio is subtracted, so the penalty sums to 0 over the batch: tokens whose log ratio is
    above the mean lose advantage, the others gain.
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


def add_teacher_advantage(
    examples: Sequence[Example], teacher: Sequence[NDArray[np.float32]], coefficient: float, reward_coefficient: float
) -> list[Example]:
    """Scale the advantages by `reward_coefficient`, and add the teacher's: its logprob minus that of sampling.

    The expectation of the added gradient is that of minus the reverse KL to the teacher. Nothing is subtracted from it,
    because the log ratio is itself what is to become 0.
    """
    return [
        replace(
            example,
            advantages=np.where(
                sampled_mask(example),
                reward_coefficient * example.advantages.astype(np.float64) + coefficient * (other - example.logprobs),
                0.0,
            ).astype(np.float32),
        )
        for example, other in zip(examples, teacher, strict=True)
    ]
