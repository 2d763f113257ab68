"""An objective in one file: token-level credit. The tokens that the policy was unsure of get more of the advantage.

Use it with `--tinker.loss examples/extensions/token_credit.py:token_credit`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hermes_rl.training.objectives import TrainedSequence


def token_credit(sequences: Sequence[TrainedSequence]) -> list[NDArray[np.float64]]:
    """Each token's share of the advantage is its surprise relative to the mean of its sequence, at most 4."""
    weights = []
    for each in sequences:
        surprise = np.where(each.sampled, -each.sampling_logprobs, 0.0)
        mean = surprise[each.sampled].mean()
        share = np.minimum(surprise / mean, 4.0) if mean > 0 else each.sampled.astype(np.float64)
        weights.append(np.minimum(each.ratios, 2.0) * share * each.advantages)
    return weights
