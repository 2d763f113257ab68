"""Meter: the tokens and the cost of all model requests of an environment: of its policy, judges and simulated users.

Always true: a request counts once, when it is answered, whatever becomes of its rollout.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple

from hermes_rl.core.trajectory import Usage
from hermes_rl.inference.config import APIServerConfig

MILLION = 1_000_000


class Used(NamedTuple):
    """Tokens, and their cost at the endpoints' prices."""

    tokens: int
    cost: float


NOTHING = Used(0, 0.0)


@dataclass(slots=True)
class Meter:
    used: Used = NOTHING
    uncounted: set[str] = field(default_factory=set)
    """Addresses of endpoints that report no usage."""
    unpriced: set[str] = field(default_factory=set)
    """Addresses of endpoints without prices."""

    def add(self, usage: Usage, config: APIServerConfig) -> None:
        prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
        cost = 0.0
        if usage.completion_tokens is None:
            self.uncounted.add(config.shown_url)
        if config.prompt_price is None or config.completion_price is None:
            self.unpriced.add(config.shown_url)
        else:
            cost = (prompt * config.prompt_price + completion * config.completion_price) / MILLION
        self.used = Used(self.used.tokens + prompt + completion, self.used.cost + cost)


_current: ContextVar[Meter | None] = ContextVar("meter", default=None)


@contextmanager
def metered(meter: Meter) -> Iterator[None]:
    """Servers that are created inside this block count here."""
    token = _current.set(meter)
    try:
        yield
    finally:
        _current.reset(token)


def current_meter() -> Meter:
    """The meter of the environment whose code runs here, else a new one."""
    return _current.get() or Meter()
