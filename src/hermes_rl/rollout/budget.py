"""Budget of a run in tokens, money and time: what its rollouts, judges and simulated users use.

No group starts after a limit. Groups in flight may finish until it is exceeded by OVERRUN (of the time: OVERTIME) and
are dropped then; a resumed run makes them again. Cost uses the endpoints' prices.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import Rollout, Usage
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.meter import MILLION, NOTHING, Meter, Used
from hermes_rl.rollout.config import HermesAgentEnvConfig

# A dropped group wastes what it used, so most must be able to finish.
OVERRUN = 0.5
# The same for time, and its minimum in seconds.
OVERTIME, MIN_OVERTIME = 0.1, 60.0
CHECK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Prices:
    """Price of a million tokens, in the endpoint's currency."""

    prompt: float
    completion: float


@dataclass(slots=True)
class Budget:
    token_limit: int | None = None
    spend_limit: float | None = None
    time_limit: float | None = None
    prices: Prices | None = None
    prompt_tokens: int = 0
    """Of the policy, in the rollouts that were added."""
    completion_tokens: int = 0
    user_cost: float = 0.0
    """Of simulated users, at the prices of their endpoints."""
    uncounted: int = 0
    started_at: float = field(default_factory=time.monotonic)
    _meter: Meter = field(default_factory=Meter)
    _before: Used = NOTHING
    """What the meter held when the run began."""
    _resumed: Used = NOTHING
    """What the rollouts of an earlier run used."""

    @classmethod
    def from_config(cls, config: HermesAgentEnvConfig, endpoints: Sequence[APIServerConfig]) -> "Budget":
        """The limits in a configuration; ConfigError when one cannot be enforced."""
        prices = {(endpoint.prompt_price, endpoint.completion_price) for endpoint in endpoints}
        priced = [
            Prices(prompt, completion) for prompt, completion in prices if prompt is not None and completion is not None
        ]
        if len(prices) > 1:
            raise ConfigError(
                "endpoints with different prices cannot share a run's budget; set the same prices for all"
            )
        if config.spend_limit is not None and not priced:
            raise ConfigError(
                "a limit of the cost needs the price of a million tokens: --openai.prompt_price and "
                "--openai.completion_price"
            )
        user = config.user_endpoint
        if config.spend_limit is not None and user and (user.prompt_price is None or user.completion_price is None):
            raise ConfigError(
                "a limit of the cost needs the prices of the simulated user too: set prompt_price and "
                "completion_price of env.user_endpoint, 0 if it is free"
            )
        return cls(config.token_limit, config.spend_limit, config.time_limit, priced[0] if priced else None)

    def start(self, meter: Meter) -> None:
        """Count what the meter measures from now on, on top of the rollouts added so far."""
        self._meter, self._before = meter, meter.used
        self._resumed = Used(self.tokens, self.spent or 0.0)

    def add(self, rollouts: Iterable[Rollout]) -> None:
        for rollout in rollouts:
            usage = rollout.usage + Usage(**rollout.metadata.get("earlier_usage", {}))
            self.prompt_tokens += usage.prompt_tokens or 0
            self.completion_tokens += usage.completion_tokens or 0
            self.user_cost += rollout.metadata.get("user", {}).get("cost", 0.0)
            self.uncounted += rollout.turns_used > 0 and usage.completion_tokens is None

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def spent(self) -> float | None:
        """None when the endpoint has no prices."""
        if self.prices is None:
            return None
        policy = self.prompt_tokens * self.prices.prompt + self.completion_tokens * self.prices.completion
        return policy / MILLION + self.user_cost

    def total(self) -> Used:
        """What all requests used, those of groups in flight included."""
        now, before, resumed = self._meter.used, self._before, self._resumed
        return Used(
            max(self.tokens, resumed.tokens + now.tokens - before.tokens),
            max(self.spent or 0.0, resumed.cost + now.cost - before.cost),
        )

    def reached_limit(self, overrun: float = 0.0) -> str | None:
        """A description of the limit that is reached, or exceeded by this share of it; None when there is room."""
        used, share = self.total(), 1 + overrun
        if self.token_limit is not None and used.tokens >= share * self.token_limit:
            return f"token_limit: {used.tokens:,} of {self.token_limit:,} tokens"
        if self.spend_limit is not None and used.cost >= share * self.spend_limit:
            return f"spend_limit: {used.cost:.6g} of {self.spend_limit:g}"
        if self.time_limit is not None:
            overtime = max(OVERTIME * self.time_limit, MIN_OVERTIME) if overrun else 0.0
            if (seconds := time.monotonic() - self.started_at) >= self.time_limit + overtime:
                return f"time_limit: {seconds:.0f} of {self.time_limit:g} s"
        return None if overrun else self._unenforceable()

    def _unenforceable(self) -> str | None:
        if self.spend_limit is not None and self._meter.unpriced:
            return (
                f"an endpoint without prices ({', '.join(sorted(self._meter.unpriced))}): set its prompt_price and "
                "completion_price, 0 if it is free"
            )
        if (self.token_limit is not None or self.spend_limit is not None) and (self.uncounted or self._meter.uncounted):
            return (
                "an endpoint that reports no token usage: token_limit and spend_limit cannot be enforced there, only "
                "--env.time_limit and --env.total_steps"
            )
        return None

    @contextmanager
    def enforced(self, groups: Collection["asyncio.Task[None]"]) -> Iterator[None]:
        """While the block runs, cancel the groups in flight once a limit is exceeded by OVERRUN."""
        loop = asyncio.get_running_loop()

        def check() -> None:
            timer[0] = loop.call_later(CHECK_SECONDS, check)
            if self.reached_limit(OVERRUN):
                for group in list(groups):
                    group.cancel()

        timer = [loop.call_later(CHECK_SECONDS, check)]
        try:
            yield
        finally:
            timer[0].cancel()
