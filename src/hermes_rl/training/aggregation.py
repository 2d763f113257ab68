"""Loss aggregation: how the losses of single tokens become the loss of a step.

Every engine sums the token losses it gets, so each sequence's advantages are scaled by one factor: the sum is then the
aggregated loss. Always true: the factors are positive, and only what is sent in the step counts.
"""

from collections.abc import Sequence

import numpy as np

from hermes_rl.training.config import LossAggregation
from hermes_rl.training.engines.protocol import Example
from hermes_rl.training.loss import sampled_mask


def sequence_factors(examples: Sequence[Example], aggregation: LossAggregation, constant: float) -> list[float]:
    """The factor of each sequence's token losses. `constant` is the divisor of CONSTANT, in tokens per sequence."""
    sampled = [int(np.count_nonzero(sampled_mask(example))) for example in examples]
    count = len(examples)
    match aggregation:
        case LossAggregation.TOKEN_MEAN:
            return [1 / sum(sampled)] * count
        case LossAggregation.TOKEN_SUM:
            return [1.0] * count
        case LossAggregation.CONSTANT:
            return [1 / (count * constant)] * count
        case LossAggregation.SEQUENCE_MEAN:
            return [1 / (count * tokens) for tokens in sampled]
