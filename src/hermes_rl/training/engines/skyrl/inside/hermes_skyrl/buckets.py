"""Training passes by length: which sequences are computed together, and how far they are padded.

Always true: every sequence is in exactly one pass; a pass with sequences over SHORT tokens is padded to at most LIMIT
times its real tokens, unless it cannot have fewer rows. Shapes come from a grid, because each compiles separately.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

LIMIT = 1.25
# Up to this length a pass takes less time than compiling another shape for it.
SHORT = 256
# Significant binary digits of a padded length: two are SkyRL's own grid, three stay below 1.25 for any length.
COARSE, FINE = 2, 3
MIN_LENGTH = 32


class Pass(NamedTuple):
    """`indices` of sequences, padded to `rows` rows of `length` tokens."""

    indices: list[int]
    rows: int
    length: int

    @property
    def tokens(self) -> int:
        return self.rows * self.length


def passes(lengths: Sequence[int], rows: int, unit: int = 1) -> Iterator[Pass]:
    """Passes of at most `rows` rows, the longest sequences first; the rows of a pass are a multiple of `unit`.

    0 rows means no limit, so one pass has them all if their padding allows it.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    largest = _up(rows or len(order), unit)
    while order:
        chosen = _next_pass(order, lengths, largest, unit)
        yield chosen
        order = order[len(chosen.indices) :]


def _next_pass(order: list[int], lengths: Sequence[int], largest: int, unit: int) -> Pass:
    longest, rows = lengths[order[0]], largest
    while True:
        indices = order[:rows]
        coarse, fine = (Pass(indices, rows, padded_length(longest, digits)) for digits in (COARSE, FINE))
        most = LIMIT * sum(lengths[index] for index in indices)
        if longest <= SHORT or coarse.tokens <= most:
            return coarse
        if rows == unit or fine.tokens <= most:
            return fine
        rows = _up(rows // 2, unit)


def padded_length(length: int, digits: int = COARSE) -> int:
    """The next length on the grid, which has `digits` significant binary digits."""
    step = 1 << max(length.bit_length() - digits, 0)
    return max(_up(length, step), MIN_LENGTH)


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
