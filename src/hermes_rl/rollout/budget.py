"""Budget of a run in tokens, money and time, checked before each group starts.

Groups in flight finish, so a limit can be exceeded by what they use and no more. Cost uses the endpoint's prices.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import Rollout, Usage
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.rollout.config import HermesAgentEnvConfig

MILLION = 1_000_000


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
    completion_tokens: int = 0
    uncounted: int = 0
    started_at: float = field(default_factory=time.monotonic)

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
                "--env.spend_limit needs the price of a million tokens: --openai.prompt_price and "
                "--openai.completion_price"
            )
        return cls(config.token_limit, config.spend_limit, config.time_limit, priced[0] if priced else None)

    def add(self, rollouts: Iterable[Rollout]) -> None:
        for rollout in rollouts:
            usage = rollout.usage + Usage(**rollout.metadata.get("earlier_usage", {}))
            self.prompt_tokens += usage.prompt_tokens or 0
            self.completion_tokens += usage.completion_tokens or 0
            self.uncounted += rollout.turns_used > 0 and usage.completion_tokens is None

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def spent(self) -> float | None:
        """None when the endpoint has no prices."""
        if self.prices is None:
            return None
        return (self.prompt_tokens * self.prices.prompt + self.completion_tokens * self.prices.completion) / MILLION

    def reached_limit(self) -> str | None:
        """A description of the limit that is reached; None when there is room."""
        if self.token_limit is not None and self.tokens >= self.token_limit:
            return f"token_limit: {self.tokens:,} of {self.token_limit:,} tokens"
        if self.spend_limit is not None and (self.spent or 0.0) >= self.spend_limit:
            return f"spend_limit: {self.spent:.6g} of {self.spend_limit:g}"
        seconds = time.monotonic() - self.started_at
        if self.time_limit is not None and seconds >= self.time_limit:
            return f"time_limit: {seconds:.0f} of {self.time_limit:g} s"
        if (self.token_limit is not None or self.spend_limit is not None) and self.uncounted:
            return (
                "an endpoint that reports no token usage: token_limit and spend_limit cannot be enforced there, only "
                "--env.time_limit and --env.total_steps"
            )
        return None
