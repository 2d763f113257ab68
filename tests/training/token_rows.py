"""Examples from rows of tokens, by hand or drawn."""

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from hermes_rl.training.engines.protocol import Example
from hermes_rl.training.objectives import TrainedSequence, trained_sequence


class Position(NamedTuple):
    now: float
    then: float
    advantage: float
    mask: int


LOGPROBS = st.floats(-20, 0, width=32)
ADVANTAGES = st.floats(-5, 5, width=32)
POSITIONS = st.builds(Position, LOGPROBS, LOGPROBS, ADVANTAGES, st.just(1)) | st.builds(
    Position, LOGPROBS, st.just(0.0), st.just(0.0), st.just(0)
)
ROWS = st.lists(POSITIONS, min_size=1, max_size=8)


def example_of(row: list[Position]) -> tuple[Example, NDArray[np.float32]]:
    """The example, and the logprobs of its targets now."""
    columns = [np.array(column, np.float32) for column in zip(*row, strict=True)]
    now, then, advantages, mask = columns
    ids = np.arange(len(row) + 1)
    return Example(ids[:-1], ids[1:], then, advantages, mask), now


def of(
    now: list[float], then: list[float], advantages: list[float], mask: list[int]
) -> tuple[Example, NDArray[np.float32]]:
    return example_of([Position(*row) for row in zip(now, then, advantages, mask, strict=True)])


def sequence_of(row: list[Position]) -> TrainedSequence:
    return trained_sequence(*example_of(row), group=0, rollout=0, score=0.0)


def sequence(
    now: list[float], then: list[float], advantages: list[float], mask: list[int] | None = None
) -> TrainedSequence:
    example, logprobs = of(now, then, advantages, mask or [1] * len(now))
    return trained_sequence(example, logprobs, group=0, rollout=0, score=0.0)
