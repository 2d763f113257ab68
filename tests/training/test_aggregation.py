"""How token losses become the loss of a step, by hand."""

import pytest

from hermes_rl.training.aggregation import sequence_factors
from hermes_rl.training.config import LossAggregation
from tests.training.token_rows import of

# One of 1 sampled token, one of 3 after two of context.
EXAMPLES = [
    of([-1.0], [-1.0], [1.0], [1])[0],
    of([-1.0] * 5, [0.0, 0.0, -1.0, -1.0, -1.0], [0.0, 0.0, 1.0, 1.0, 1.0], [0, 0, 1, 1, 1])[0],
]


@pytest.mark.parametrize(
    ("aggregation", "due"),
    [
        (LossAggregation.TOKEN_MEAN, [1 / 4, 1 / 4]),
        (LossAggregation.TOKEN_SUM, [1.0, 1.0]),
        (LossAggregation.CONSTANT, [1 / 200, 1 / 200]),
        (LossAggregation.SEQUENCE_MEAN, [1 / 2, 1 / 6]),
    ],
)
def test_each_sequence_is_scaled_by_sampled_tokens_only(aggregation: LossAggregation, due: list[float]) -> None:
    assert sequence_factors(EXAMPLES, aggregation, 100.0) == pytest.approx(due)
