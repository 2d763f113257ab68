"""The policy's own time in a program: the tokens it sampled, and what passes between an answer and the next request.

Pure. What passes before the first answer is the program's start, and what passes while a request is answered the
endpoint's: neither is the policy's doing, nor that of a command it had run.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Answering(NamedTuple):
    """A request from when it was taken up to its answer, None while there is none; `answered` with tokens or not."""

    start: float
    end: float | None
    answered: bool


def policy_seconds(requests: Iterable[Answering], now: float, *, tokens: int, seconds_per_token: float) -> float:
    """How much of its deadline the policy has used."""
    known = sorted(requests, key=lambda one: one.start)
    first = min((one.end for one in known if one.answered and one.end is not None), default=None)
    if first is None:
        return 0.0
    busy, covered = 0.0, first
    for one in known:
        end = now if one.end is None else one.end
        if end > covered:
            busy += end - max(one.start, covered)
            covered = end
    return max(now - first - busy, 0.0) + tokens * seconds_per_token
