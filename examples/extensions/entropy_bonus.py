"""An objective in one file: keep groups exploring. A group that has become certain gets a bonus for unlikely tokens.

Use it with `--tinker.loss examples/extensions/entropy_bonus.py:entropy_bonus`.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hermes_rl.training.objectives import TrainedSequence

# Mean entropy in nats per token below which a group gets the bonus, and its size.
TARGET, COEFFICIENT = 0.5, 0.02


def entropy_bonus(sequences: Sequence[TrainedSequence]) -> list[NDArray[np.float64]]:
    """Truncated importance sampling, plus the gradient of each group's missing entropy."""
    surprise: dict[int, list[NDArray[np.float64]]] = defaultdict(list)
    for each in sequences:
        surprise[each.group].append(-each.logprobs[each.sampled])
    entropy = {group: float(np.concatenate(parts).mean()) for group, parts in surprise.items()}
    weights = []
    for each in sequences:
        ratios = np.minimum(each.ratios, 2.0)
        missing = max(0.0, TARGET - entropy[each.group])
        # The gradient of the entropy, estimated from samples: tokens more surprising than the mean gain weight.
        bonus = COEFFICIENT * missing * (-each.logprobs - entropy[each.group])
        weights.append(ratios * (each.advantages + bonus))
    return weights
