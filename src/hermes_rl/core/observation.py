"""Lets the caller of author code see which of hermes-rl's parts that code used.

An environment's own `collect_trajectory` uses servers, agents and sandboxes as it likes and returns plain dicts. Parts
report themselves here; outside an `observing` block this does nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from hermes_rl.core.errors import Failure

_observed: ContextVar[list[object] | None] = ContextVar("observed", default=None)


class ObservedFailure(NamedTuple):
    """A failure outside the policy that author code may have caught, and the rollout it happened in."""

    task_id: str
    failure: Failure


def observe(part: object) -> None:
    """Report a part to the innermost `observing` block of this task, if there is one."""
    observed = _observed.get()
    if observed is not None:
        observed.append(part)


@contextmanager
def observing() -> Iterator[list[object]]:
    """The parts that report themselves inside this block, and in tasks and threads it starts."""
    observed: list[object] = []
    token = _observed.set(observed)
    try:
        yield observed
    finally:
        _observed.reset(token)
