"""What the engine minimises, computed here from the logprobs it returns, and what it cannot do done to the examples.

Always true: only sampled tokens count; examples that come in are never changed; numbers that go in finite come out
finite, since no ratio is taken to be more than exp(80).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hermes_rl.training.engine import Example
from hermes_rl.training.settings import Loss

# An engine's float32 ends at exp(88).
LARGEST_LOG_RATIO = 80.0


def sampled(example: Example) -> NDArray[np.bool_]:
    """Which of the targets the policy sampled."""
    return np.asarray(example.mask != 0)


def ratios(example: Example, logprobs: NDArray[np.float32]) -> NDArray[np.float64]:
    """By target, its probability now over that when it was sampled; 1 where nothing was."""
    moved = np.where(sampled(example), logprobs.astype(np.float64) - example.logprobs, 0.0)
    return np.asarray(np.exp(np.minimum(moved, LARGEST_LOG_RATIO)))


def token_losses(
    loss: Loss, example: Example, logprobs: NDArray[np.float32], clip: tuple[float, float]
) -> NDArray[np.float64]:
    """By target, the loss as Tinker defines it, given the target's logprobs now. `clip` bounds the ratio."""
    ratio = ratios(example, logprobs)
    clipped = np.clip(ratio, *clip)
    advantages = example.advantages.astype(np.float64)
    objective = ratio * advantages
    if loss is Loss.PPO:
        objective = np.minimum(objective, clipped * advantages)
    elif loss is Loss.CISPO:
        # The engine's gradient goes through the logprob only; the clipped ratio is a weight.
        objective = clipped * advantages * np.where(sampled(example), logprobs, 0.0)
    return np.where(sampled(example), -objective, 0.0)


def total_loss(
    loss: Loss, examples: Sequence[Example], logprobs: Sequence[NDArray[np.float32]], clip: tuple[float, float]
) -> float:
    """The sum over all tokens, which hosted Tinker calls `loss:sum`."""
    pairs = zip(examples, logprobs, strict=True)
    return float(sum(token_losses(loss, example, now, clip).sum() for example, now in pairs))


def penalised(
    examples: Sequence[Example], reference: Sequence[NDArray[np.float32]], coefficient: float
) -> list[Example]:
    """The examples with the KL divergence from a reference in their advantages.

    A token that is likelier than to the reference by more than the mean over the batch's sampled tokens loses in
    advantage, the others gain: the mean takes nothing away from the batch as a whole. To be done before `truncated`,
    so that this part of an advantage is weighed too.
    """
    apart = [
        np.where(sampled(example), example.logprobs.astype(np.float64) - other, 0.0)
        for example, other in zip(examples, reference, strict=True)
    ]
    count = sum(int(sampled(example).sum()) for example in examples)
    mean = sum(float(one.sum()) for one in apart) / max(count, 1)
    return [
        replace(
            example,
            advantages=np.where(sampled(example), example.advantages + coefficient * (mean - one), 0.0).astype(
                np.float32
            ),
        )
        for example, one in zip(examples, apart, strict=True)
    ]


def truncated(examples: Sequence[Example], logprobs: Sequence[NDArray[np.float32]], most: float) -> list[Example]:
    """The examples as if the weights in training had sampled them, each token weighed for that it was something else.

    The weight is the ratio, `most` at most: where the sampler's arithmetic differs a lot from the trainer's, a few
    tokens would otherwise decide the step. `logprobs` are of the targets now, so the engine's own ratio begins at 1.
    """
    return [
        replace(
            example,
            logprobs=np.where(sampled(example), now, 0.0).astype(np.float32),
            advantages=(example.advantages * np.minimum(ratios(example, now), most)).astype(np.float32),
        )
        for example, now in zip(examples, logprobs, strict=True)
    ]
