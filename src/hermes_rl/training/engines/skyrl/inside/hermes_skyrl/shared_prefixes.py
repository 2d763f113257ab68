"""Rows of several sequences: those that begin with the same tokens are computed together, the beginning once.

Always true: only tokens that change no gradient are shared; a row costs less than its sequences one by one; the rest
of the batch is left as it is.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .buckets import FINE, padded_length

# A row has the padded length of this many of its sequences, and a pass as many rows fewer as attention then costs more.
STRETCH = 2
FEWER_ROWS = STRETCH**2
# The share of the cost of separate sequences that a row may have: shapes differ more, and each is compiled.
WORTH = 0.8


class Sample(NamedTuple):
    """A sequence. Only those of one `kind` share a row. `inert` tokens have a loss of 0 and no gradient."""

    kind: Hashable
    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    inert: NDArray[np.bool_]

    @property
    def free(self) -> int:
        """How many tokens at the beginning may be shared; never all of them."""
        return int(np.argmin(np.append(self.inert[:-1], False)))

    def common(self, other: "Sample") -> int:
        """How many tokens at the beginning both have, with the same targets, and may share."""
        size = min(self.free, other.free)
        same = (self.tokens[:size] == other.tokens[:size]) & (self.targets[:size] == other.targets[:size])
        return int(np.argmin(np.append(same, False)))


class Row(NamedTuple):
    """The sequences of `indices`, whose first `shared` tokens stand once, padded to `length`."""

    indices: list[int]
    shared: int
    length: int


class SharedPass(NamedTuple):
    chosen: list[Row]
    rows: int
    length: int


def shared_passes(samples: Sequence[Sample], rows: int, unit: int, width: int) -> Iterator[SharedPass]:
    """Passes of rows with several sequences, for a model whose hidden states have `width` numbers.

    Ordinary passes have at most `rows` rows, or no limit if 0; the rows of a pass are a multiple of `unit`.
    """
    if 0 < rows < FEWER_ROWS * unit:
        return
    by_length = defaultdict[int, list[Row]](list)
    for row in shared_rows(samples, width):
        by_length[row.length].append(row)
    for length, same in sorted(by_length.items(), reverse=True):
        most = (rows or len(samples)) // FEWER_ROWS // unit * unit or unit
        for first in range(0, len(same), most):
            chosen = same[first : first + most]
            yield SharedPass(chosen, -(-len(chosen) // unit) * unit, length)


def shared_rows(samples: Sequence[Sample], width: int) -> Iterator[Row]:
    by_kind = defaultdict[Hashable, list[int]](list)
    for index, sample in enumerate(samples):
        by_kind[sample.kind].append(index)
    for indices in by_kind.values():
        # Sequences with the same beginning stand next to each other.
        order = sorted(indices, key=lambda index: samples[index].tokens.tolist())
        while order:
            row = _next_row(samples, order)
            order = order[len(row.indices) :]
            apart = sum(cost(padded_length(len(samples[index].tokens), FINE), width) for index in row.indices)
            if cost(row.length, width) <= WORTH * apart:
                yield row


def _next_row(samples: Sequence[Sample], order: Sequence[int]) -> Row:
    """As many sequences from the first on as fit into a row."""
    first = samples[order[0]]
    row, total = Row([order[0]], first.free, _room(len(first.tokens))), len(first.tokens)
    for index in order[1:]:
        sample = samples[index]
        shared = min(row.shared, first.common(sample))
        grown = total + (row.shared - shared) * (len(row.indices) - 1) + len(sample.tokens) - shared
        room = max(row.length, _room(len(sample.tokens)))
        if grown > room or grown - total > WORTH * len(sample.tokens):
            break
        row, total = Row([*row.indices, index], shared, room), grown
    return row


def _room(length: int) -> int:
    return STRETCH * padded_length(length, FINE)


def cost(length: int, width: int) -> float:
    """Of a row, relative to a token without attention: scores and values cost as much as all else at 6 `width`."""
    return length * (1 + length / (6 * width))


def joined(row: Row, columns: Sequence[Sequence[float]]) -> list[float]:
    """One column of the row: the shared beginning, then what each sequence has after it."""
    return [*columns[0][: row.shared], *(value for column in columns for value in column[row.shared :])]


def separated(row: Row, lengths: Sequence[int], column: Sequence[float]) -> Iterator[list[float]]:
    """The column of each sequence of the row."""
    begin = row.shared
    for length in lengths:
        end = begin + length - row.shared
        yield [*column[: row.shared], *column[begin:end]]
        begin = end


def segments(row: Row, lengths: Sequence[int]) -> NDArray[np.int32]:
    """1 for shared tokens, 2 and more for those of each sequence, 0 for padding."""
    counts = [row.shared, *(length - row.shared for length in lengths)]
    marks = np.repeat(np.arange(1, len(counts) + 1), counts)
    return np.pad(marks, (0, row.length - len(marks))).astype(np.int32)
