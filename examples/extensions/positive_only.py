"""An objective in one file: learn from rollouts that beat their group, and leave the others alone.

Use it with `--tinker.loss examples/extensions/positive_only.py:positive_only`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hermes_rl.training.objectives import TrainedSequence


def positive_only(sequences: Sequence[TrainedSequence]) -> list[NDArray[np.float64]]:
    """The weight of each token: its truncated importance ratio times its advantage, if that is positive."""
    return [np.minimum(each.ratios, 2.0) * np.maximum(each.advantages, 0.0) for each in sequences]
