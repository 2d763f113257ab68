"""Slots limit how many groups run at once: a fixed number, or an adaptive limit that follows the engines' load.

At least one group may always run. Lowering the limit cancels nothing. With `concurrency: auto` the limit never exceeds
a number the operator set.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from hermes_rl.inference.concurrency_limiter import AIMDLimiter, LimiterConfig
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.rollout.config import HermesAgentEnvConfig

ADJUST_EVERY = 0.2
# Bounds of inference_weight: outside them the limit does not converge, or never moves.
MIN_WEIGHT, MAX_WEIGHT = 0.1, 10.0
# Rollouts may grow faster than requests: one too many waits here instead of being refused by an engine.
MAX_GROWTH = 1 / 8


@dataclass(frozen=True, slots=True)
class ConcurrencyConfig:
    """How many groups of `size` rollouts run at once: `fixed`, or adaptive from `initial` up to `maximum`.

    Only the completions of `split` are counted, so an evaluation does not distort the limit for training.
    """

    size: int
    fixed: int
    initial: int
    maximum: int
    split: Literal["train", "eval"] = "train"


class Slots:
    """Use inside `adjusting`. `acquire` waits for a slot; `start` counts a group that starts regardless."""

    def __init__(
        self, server: ServerManager, config: ConcurrencyConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._server, self._config, self._clock = server, config, clock
        self.limiter = AIMDLimiter(rollout_limiter_config(config)) if server.limiter_config is not None else None
        self._running = 0
        self._answers = 0
        self._free = asyncio.Event()

    @property
    def limit(self) -> int:
        """How many groups may run now."""
        if self.limiter is None:
            return self._config.fixed
        return max(1, self.limiter.limit // self._config.size)

    async def acquire(self) -> None:
        while self._running >= self.limit:
            self._free.clear()
            await self._free.wait()
        self.start()

    def start(self) -> None:
        self._running += 1
        if self.limiter is not None:
            self.limiter.began(self._clock(), self._config.size)

    def release(self) -> None:
        self._running -= 1
        if self.limiter is not None:
            self.limiter.ended(self._clock(), self._config.size)
        self._free.set()

    @asynccontextmanager
    async def adjusting(self, on_raised: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
        """Adjust the limit while the block runs; call `on_raised` whenever it grows."""
        if self.limiter is None:
            yield
            return
        task = asyncio.create_task(self._adjust_forever(self.limiter, on_raised))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    def metrics(self) -> dict[str, float]:
        """Metrics of the adaptive limit; empty when the limit is fixed."""
        if self.limiter is None:
            return {}
        metrics = {"rollouts_limit": float(self.limiter.limit), "rollouts_cuts": float(self.limiter.cuts)}
        metrics |= self._server.endpoints.figures()
        return {f"pressure/{name}": value for name, value in metrics.items()}

    def describe(self) -> str | None:
        """One line for the display; None when the limit is fixed."""
        if self.limiter is None:
            return None
        server = self._server.endpoints.figures()
        return (
            f"{self.limiter.limit} rollouts at once, "
            f"{server['requests']:.0f} of {server['requests_limit']:.0f} requests, {server['requests_held']:.0f} held; "
            f"{server['refusals']:.0f} refused, {server['cuts']:.0f} cuts"
        )

    async def _adjust_forever(self, limiter: AIMDLimiter, on_raised: Callable[[], None]) -> None:
        before = self.limit
        while True:
            await asyncio.sleep(ADJUST_EVERY)
            self._update(limiter)
            if self.limit > before:
                self._free.set()
                on_raised()
            before = self.limit

    def _update(self, limiter: AIMDLimiter) -> None:
        now, engines = self._clock(), self._server.servers
        gates = [engine.gate for engine in engines if engine.gate is not None]
        limiter.observe_queue(now, sum(gate.queued for gate in gates), sum(gate.limiter.limit for gate in gates))
        total = sum(engine.answers[self._config.split] for engine in engines)
        # The total drops when an engine leaves, and restarts from zero when one is reopened.
        answers, self._answers = max(0, total - self._answers), total
        if answers:
            limiter.served(now, answers, answers)


def rollout_limiter_config(config: ConcurrencyConfig) -> LimiterConfig:
    """A limit that counts rollouts and moves by whole groups."""
    return LimiterConfig(
        initial=config.size * config.initial,
        minimum=config.size,
        maximum=config.size * config.maximum,
        unit=config.size,
        max_growth=MAX_GROWTH,
    )


def engine_limiter_config(config: HermesAgentEnvConfig) -> LimiterConfig | None:
    """The adaptive limit of requests to one engine; None when concurrency is fixed."""
    if config.concurrency != "auto":
        return None
    return LimiterConfig(weight=min(max(config.inference_weight, MIN_WEIGHT), MAX_WEIGHT))


def training_concurrency(config: HermesAgentEnvConfig, endpoints: int) -> ConcurrencyConfig:
    """Concurrency of training groups: `max_num_workers`, or `max_num_workers_per_node` for each endpoint."""
    size, initial, maximum = config.group_size, config.max_num_workers_per_node * endpoints, config.max_num_workers
    if maximum > 0:
        return ConcurrencyConfig(size, maximum, min(initial, maximum), maximum)
    return ConcurrencyConfig(size, initial, initial, max(initial, config.max_live_sandboxes // size))


def evaluation_concurrency(config: HermesAgentEnvConfig) -> ConcurrencyConfig:
    """Concurrency of evaluation groups. A group is never split, so one runs even if `max_eval_workers` is smaller."""
    size = config.eval_samples
    default = max(1, type(config).model_fields["max_eval_workers"].default // size)
    fixed = max(1, config.max_eval_workers // size)
    if "max_eval_workers" in config.model_fields_set:
        return ConcurrencyConfig(size, fixed, min(default, fixed), fixed, "eval")
    return ConcurrencyConfig(size, fixed, fixed, max(fixed, config.max_live_sandboxes // size), "eval")
