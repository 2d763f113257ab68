"""A frozen batch: sequences of 20 to 2,000 tokens with tool turns, and one rollout of three branches.

Every number comes from a seed, so that the engine's process and the reference's make the same one. It needs numpy only.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

VOCABULARY = 320
# Standard deviation of the log ratio between the policy that sampled and the first weights.
OFF_POLICY = 0.3
# By group, by rollout: the score, and for each sequence its spans (sampled or not, tokens).
Spans = tuple[tuple[str, int], ...]
GROUPS: tuple[tuple[tuple[float, tuple[Spans, ...]], ...], ...] = (
    (
        (1.0, ((("prompt", 12), ("sampled", 8)),)),
        (0.0, ((("prompt", 12), ("sampled", 60), ("tool", 400), ("sampled", 30)),)),
        (0.25, ((("prompt", 12), ("sampled", 20), ("tool", 1800), ("sampled", 40), ("tool", 100), ("sampled", 28)),)),
    ),
    (
        (
            0.2,
            (
                (("prompt", 20), ("sampled", 5), ("tool", 30), ("sampled", 6)),
                (("prompt", 45), ("sampled", 11), ("tool", 3), ("sampled", 2)),
                (("prompt", 6), ("sampled", 15)),
            ),
        ),
        (0.9, ((("prompt", 20), ("sampled", 33), ("tool", 9), ("sampled", 120)),)),
        (0.9, ((("prompt", 20), ("sampled", 7)),)),
    ),
)


@dataclass(frozen=True)
class FrozenSequence:
    """`noise` is how far the sampling logprob of each target is from that of the first weights; 0 where not sampled."""

    group: int
    rollout: int
    score: float
    tokens: "np.ndarray[Any, np.dtype[np.int64]]"
    sampled: "np.ndarray[Any, np.dtype[np.bool_]]"
    noise: "np.ndarray[Any, np.dtype[np.float64]]"


def frozen_batch(seed: int = 7, *, longest_tool_output: int = 2000) -> list[FrozenSequence]:
    random = np.random.default_rng(seed)
    made = []
    for group, rollouts in enumerate(GROUPS):
        for rollout, (score, sequences) in enumerate(rollouts):
            for spans in sequences:
                limits = [(kind, min(count, longest_tool_output) if kind == "tool" else count) for kind, count in spans]
                sampled = np.concatenate([np.full(count, kind == "sampled") for kind, count in limits])
                tokens = random.integers(3, VOCABULARY, len(sampled))
                noise = random.normal(size=len(sampled)) * OFF_POLICY * sampled
                made.append(FrozenSequence(group, rollout, score, tokens, sampled, noise))
    return made


def step_batches() -> list[list[FrozenSequence]]:
    """Three shorter ones, for many steps."""
    return [frozen_batch(seed, longest_tool_output=50) for seed in (1, 2, 3)]
