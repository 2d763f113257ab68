"""What a large `process` may cost in tokens and time, before it starts."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import click

from hermes_rl.console.live_display import write_line
from hermes_rl.console.panel import format_long_duration
from hermes_rl.console.run_command import run_async
from hermes_rl.core.errors import EndpointError
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.meter import MILLION
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.rollout.concurrency import training_concurrency
from hermes_rl.rollout.config import HermesAgentEnvConfig

# From this many rollouts on, the estimate is printed and a person is asked.
LARGE = 200
PROBE_TOKENS = 32
# Few rollouts use all their turns and tokens; a tenth is a usual order of magnitude.
TYPICAL_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Estimate:
    """`speed` is in tokens per second of one request; None where it could not be measured."""

    groups: int
    group_size: int
    turns: int
    turn_tokens: int
    at_once: int
    speed: float | None = None
    price: float | None = None
    """Of a million completion tokens."""

    @property
    def rollouts(self) -> int:
        return self.groups * self.group_size

    @property
    def max_tokens(self) -> int:
        return self.rollouts * self.turns * self.turn_tokens

    def seconds(self, tokens: float) -> float | None:
        return None if self.speed is None else tokens / (self.speed * min(self.at_once, self.rollouts))

    def lines(self) -> list[str]:
        typical = round(TYPICAL_SHARE * self.max_tokens)
        price = ""
        if self.price is not None:
            low, high = (tokens * self.price / MILLION for tokens in (typical, self.max_tokens))
            price = f"; {low:.2f} and {high:.2f} at the price of completion tokens"
        usual, longest = self.seconds(typical), self.seconds(self.max_tokens)
        duration = "unknown: the speed of the endpoint could not be measured"
        if usual is not None and longest is not None:
            duration = (
                f"{format_long_duration(usual)} for a tenth, {format_long_duration(longest)} at most "
                f"({self.speed:.3g} tokens/s measured with one request, {min(self.at_once, self.rollouts)} at once)"
            )
        size = (
            f"{self.groups:,} groups x {self.group_size} rollouts = {self.rollouts:,} rollouts of up to {self.turns} "
            f"turns and {self.turn_tokens:,} tokens per turn"
        )
        return [
            size,
            f"  tokens generated: {typical:,} if they use a tenth of that, {self.max_tokens:,} at most{price}",
            f"  time: {duration}",
            "  fewer: --groups N; a limit: --max-minutes N, --max-tokens-total N, --max-cost X",
        ]


def confirm_if_large(
    config: HermesAgentEnvConfig, endpoints: Sequence[APIServerConfig], done: int, *, confirmed: bool
) -> None:
    """Print the estimate of a large run, and ask a person at the terminal; click.Abort if the answer is no."""
    groups = config.total_steps - done
    if groups * config.group_size < LARGE:
        return
    estimate = Estimate(
        groups,
        config.group_size,
        config.max_agent_turns,
        config.max_token_length,
        training_concurrency(config, len(endpoints)).fixed * config.group_size,
        run_async(_measure_speed(endpoints)),
        endpoints[0].completion_price,
    )
    for line in estimate.lines():
        write_line(line)
    if not confirmed and sys.stdin.isatty() and sys.stderr.isatty():
        click.confirm("Start? (--yes does not ask)", abort=True, err=True)


async def _measure_speed(endpoints: Sequence[APIServerConfig]) -> float | None:
    """Tokens per second of one short request, the first of the run, so that it includes no waiting."""
    async with ServerManager(endpoints) as server:
        await server.wait_until_ready(max(endpoint.ready_timeout for endpoint in endpoints))
        began = time.monotonic()
        try:
            completion = await server.chat_completion(
                [{"role": "user", "content": "Count from one to one hundred."}], max_tokens=PROBE_TOKENS
            )
        except EndpointError:
            return None
        tokens = completion.usage.completion_tokens
        return tokens / max(time.monotonic() - began, 1e-3) if tokens else None
