"""The token columns of a stored group as arrays, a set for each sequence, read without decoding anything else."""

from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hermes_rl.store.codec import Columns


class SequenceColumns(NamedTuple):
    """`logprobs` and `versions` are NaN where the record has none; float64 holds every version exactly."""

    tokens: NDArray[np.int64]
    sampled: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.float64]

    @property
    def targets(self) -> NDArray[np.bool_]:
        """Which tokens but the first were sampled; the first follows nothing that it could be learned from."""
        return self.sampled[1:]

    @property
    def oldest_version(self) -> float:
        """Of all targets; NaN when one has none."""
        return float(self.versions[1:][self.targets].min(initial=np.inf))

    @property
    def turns(self) -> int:
        """How many stretches of it the policy sampled: between two turns stand at least the marks of the template."""
        return int(_begins(self.sampled).sum())

    @property
    def turn_of_each(self) -> NDArray[np.int64]:
        """For each sampled token the number of its turn in this sequence, from 0."""
        return np.asarray(np.cumsum(_begins(self.sampled)) - 1)


def scores_of(columns: Columns) -> list[float | None]:
    """By rollout."""
    scores = iter(columns.scores.tolist())
    scored = _flags(columns.scored, len(columns.sequences))
    return [next(scores) if one else None for one in scored]


def sequences_of(columns: Columns) -> list[list[SequenceColumns]]:
    """By rollout."""
    count = len(columns.tokens)
    tokens = np.asarray(columns.tokens, np.int64)
    sampled = _flags(columns.masks, count)
    logprobs = np.full(count, np.nan, np.float32)
    logprobs[_flags(columns.logprobs_at, count)] = columns.logprobs
    versions = np.full(count, np.nan)
    versions[_flags(columns.versions_at, count)] = np.repeat(
        np.asarray(columns.versions), np.asarray(columns.version_runs)
    )
    sequences = [
        SequenceColumns(tokens[begin:end], sampled[begin:end], logprobs[begin:end], versions[begin:end])
        for begin, end in pairwise(accumulate(columns.lengths, initial=0))
    ]
    return [sequences[begin:end] for begin, end in pairwise(accumulate(columns.sequences, initial=0))]


def _flags(bits: "memoryview[int]", count: int) -> NDArray[np.bool_]:
    return np.unpackbits(np.asarray(bits, np.uint8), count=count).astype(np.bool_)


def _begins(sampled: NDArray[np.bool_]) -> NDArray[np.bool_]:
    before = np.concatenate(([False], sampled[:-1]))
    return sampled & ~before
