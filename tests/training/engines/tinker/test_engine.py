"""What a step sends to the Tinker API; tests/engines/skyrl sends it to a real engine."""

import numpy as np

from hermes_rl.training.engines.protocol import CROSS_ENTROPY, Example
from hermes_rl.training.engines.tinker.engine import to_datums

EXAMPLE = Example(
    tokens=np.array([1, 2]),
    targets=np.array([2, 3]),
    logprobs=np.array([0, -0.5], np.float32),
    advantages=np.array([0, 0.25], np.float32),
    mask=np.array([0, 1], np.float32),
)


def inputs(loss: str) -> dict[str, list[float]]:
    [datum] = to_datums([EXAMPLE], loss)
    assert datum.model_input.to_ints() == [1, 2]
    return {name: tensor.tolist() for name, tensor in datum.loss_fn_inputs.items()}


def test_cross_entropy_takes_weights() -> None:
    assert inputs(CROSS_ENTROPY) == {"target_tokens": [2, 3], "weights": [0, 0.25]}


def test_other_losses_take_logprobs_and_advantages() -> None:
    assert inputs("ppo") == {"target_tokens": [2, 3], "logprobs": [0, -0.5], "advantages": [0, 0.25]}
