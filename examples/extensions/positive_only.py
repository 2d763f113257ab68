"""An objective in one file: learn from rollouts that beat their group, and leave the others alone.

Use it with `--tinker.loss examples/extensions/positive_only.py:PositiveOnly`.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hermes_rl.training.engines.protocol import Example
from hermes_rl.training.objectives import ImportanceSampling


class PositiveOnly(ImportanceSampling):
    name = "positive_only"

    def reshape(self, examples: Sequence[Example]) -> list[Example]:
        return [replace(example, advantages=np.maximum(example.advantages, 0)) for example in examples]
