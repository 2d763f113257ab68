"""The loss of the self-hosted engine before 0.2.0: each sequence divided by its whole length, tool output included."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hermes_rl.training.objectives import TrainedSequence


def length_weighted(sequences: Sequence[TrainedSequence]) -> list[NDArray[np.float64]]:
    """With `loss_aggregation` token_sum: the mean over sequences of a sum over tokens divided by the length."""
    count = len(sequences)
    return [np.minimum(each.ratios, 2.0) * each.advantages / (count * len(each.tokens)) for each in sequences]
