"""Which endpoint gets a request: the one that has the conversation's prefix, unless another is much less loaded."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

# So many requests more than the least loaded endpoint has, beyond twice its own, are worth a prompt that need not be
# computed again.
WORTH_A_PREFIX = 8
# The same where limits are known, in parts of them: what waits there half a round is not sent elsewhere.
WORTH_A_WAIT = 0.5


class Candidate(Protocol):
    """`limit` is what it bears at once; None where nobody measures it."""

    in_flight: int

    @property
    def limit(self) -> int | None: ...


C = TypeVar("C", bound=Candidate)


def chosen(ready: Sequence[C], holder: C | None) -> C:
    """The holder of the prefix if it is ready and has room, or little more to do than the least loaded."""
    least = min(ready, key=load)
    if holder is None or holder is least or not any(one is holder for one in ready):
        return least
    return holder if stays(holder) or worth_staying(holder, least) else least


def stays(holder: Candidate) -> bool:
    """Whether a conversation stays there whatever the others have to do."""
    return holder.in_flight < (WORTH_A_PREFIX if holder.limit is None else holder.limit)


def worth_staying(holder: Candidate, least: Candidate) -> bool:
    if holder.limit is None:
        return holder.in_flight <= 2 * least.in_flight + WORTH_A_PREFIX
    return load(holder) <= load(least) + WORTH_A_WAIT


def load(one: Candidate) -> float:
    return one.in_flight / max(one.limit, 1) if one.limit is not None else float(one.in_flight)
