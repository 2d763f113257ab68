"""What a run may use: tokens, money, time. Checked before a group begins; those in flight are finished and kept.

So a limit can be passed by what the groups in flight use, and by no more. Money is counted by the endpoint's prices.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hermes_rl.environment.config import HermesAgentEnvConfig
from hermes_rl.errors import ConfigError
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.trajectory import Rollout, Usage

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Prices:
    """Of a million tokens, in whatever currency the endpoint bills."""

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
    def of(cls, config: HermesAgentEnvConfig, endpoints: Sequence[APIServerConfig]) -> "Budget":
        """The limits of a configuration; ConfigError when one could not be held."""
        prices = {(endpoint.prompt_price, endpoint.completion_price) for endpoint in endpoints}
        known = [
            Prices(prompt, completion) for prompt, completion in prices if prompt is not None and completion is not None
        ]
        if len(prices) > 1:
            raise ConfigError("endpoints of different prices in one run cannot be counted; give all the same prices")
        if config.spend_limit is not None and not known:
            raise ConfigError(
                "--env.spend_limit needs the prices of a million tokens: --openai.prompt_price and "
                "--openai.completion_price"
            )
        return cls(config.token_limit, config.spend_limit, config.time_limit, known[0] if known else None)

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

    def reached(self) -> str | None:
        """Which limit is reached, in words; None when there is room."""
        if self.token_limit is not None and self.tokens >= self.token_limit:
            return f"token_limit: {self.tokens:,} of {self.token_limit:,} tokens"
        if self.spend_limit is not None and (self.spent or 0.0) >= self.spend_limit:
            return f"spend_limit: {self.spent:.6g} of {self.spend_limit:g}"
        seconds = time.monotonic() - self.started_at
        if self.time_limit is not None and seconds >= self.time_limit:
            return f"time_limit: {seconds:.0f} of {self.time_limit:g} s"
        if (self.token_limit is not None or self.spend_limit is not None) and self.uncounted:
            return (
                "an endpoint that does not count tokens: no limit of tokens or spending can be held there, only "
                "--env.time_limit and --env.total_steps"
            )
        return None
