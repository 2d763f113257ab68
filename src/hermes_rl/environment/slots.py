"""Slots: how many groups run at once. A fixed number, or as many as the engines bear.

Always true: one group may run, whatever the limit; what is lowered ends nothing that runs. With `concurrency: auto` a
number that the operator gave is never exceeded.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from hermes_rl.environment.config import HermesAgentEnvConfig
from hermes_rl.inference.pressure import Law, Pressure
from hermes_rl.inference.server_manager import ServerManager

WATCH = 0.2
# What inference_weight may mean for a limit: beyond, it would not find its place, or never move.
LIGHTEST, HEAVIEST = 0.1, 10.0
# Rollouts are found sooner than requests: one too many waits here, and no engine refuses it.
FINEST = 1 / 8


@dataclass(frozen=True, slots=True)
class Width:
    """How many groups of `size` rollouts run at once: `fixed`, or by pressure `first` and then up to `most`.

    `split` is what the answers are for: an evaluation's say nothing of how training rollouts fare.
    """

    size: int
    fixed: int
    first: int
    most: int
    split: Literal["train", "eval"] = "train"


class Slots:
    """Use within `watching`. Take one for each group by `acquire`, or count a group that begins anyway by `began`."""

    def __init__(self, server: ServerManager, width: Width, clock: Callable[[], float] = time.monotonic) -> None:
        self._server, self._width, self._clock = server, width, clock
        self.pressure = Pressure(rollout_law(width)) if server.law is not None else None
        self._running = 0
        self._answers = 0
        self._free = asyncio.Event()

    @property
    def most(self) -> int:
        """How many groups may run now."""
        if self.pressure is None:
            return self._width.fixed
        return max(1, self.pressure.limit // self._width.size)

    async def acquire(self) -> None:
        while self._running >= self.most:
            self._free.clear()
            await self._free.wait()
        self.began()

    def began(self) -> None:
        self._running += 1
        if self.pressure is not None:
            self.pressure.began(self._clock(), self._width.size)

    def release(self) -> None:
        self._running -= 1
        if self.pressure is not None:
            self.pressure.ended(self._clock(), self._width.size)
        self._free.set()

    @asynccontextmanager
    async def watching(self, changed: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
        """Follow the engines while the block runs; `changed` is called when more may run than before."""
        if self.pressure is None:
            yield
            return
        task = asyncio.create_task(self._watch(self.pressure, changed))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    def figures(self) -> dict[str, float]:
        """For a line of metrics; none where the number is fixed."""
        if self.pressure is None:
            return {}
        told = {"rollouts_limit": float(self.pressure.limit), "rollouts_cuts": float(self.pressure.cuts)}
        told |= self._server.endpoints.figures()
        return {f"pressure/{name}": value for name, value in told.items()}

    def told(self) -> str | None:
        """For a person, in a line; None where the number is fixed."""
        pressure = self.pressure
        if pressure is None:
            return None
        server = self._server.endpoints.figures()
        return (
            f"{pressure.limit} rollouts at once, {server['requests']:.0f} of {server['requests_limit']:.0f} requests, "
            f"{server['requests_held']:.0f} held; {server['refusals']:.0f} refused, {server['cuts']:.0f} cuts"
        )

    async def _watch(self, pressure: Pressure, changed: Callable[[], None]) -> None:
        before = self.most
        while True:
            await asyncio.sleep(WATCH)
            self._look(pressure)
            if self.most > before:
                self._free.set()
                changed()
            before = self.most

    def _look(self, pressure: Pressure) -> None:
        now, engines = self._clock(), self._server.servers
        gates = [engine.gate for engine in engines if engine.gate is not None]
        pressure.waits(now, sum(gate.held for gate in gates), sum(gate.pressure.limit for gate in gates))
        total = sum(engine.answers[self._width.split] for engine in engines)
        # Engines that left took their answers along, and those that are opened anew count from the beginning.
        answers, self._answers = max(0, total - self._answers), total
        if answers:
            pressure.served(now, answers, answers)


def rollout_law(width: Width) -> Law:
    """In rollouts, by whole groups."""
    return Law(
        first=width.size * width.first,
        least=width.size,
        most=width.size * width.most,
        unit=width.size,
        finest=FINEST,
    )


def engine_law(config: HermesAgentEnvConfig) -> Law | None:
    """How the requests to an engine follow it; None where they do not. Environments share engines by their weights."""
    if config.concurrency != "auto":
        return None
    return Law(weight=min(max(config.inference_weight, LIGHTEST), HEAVIEST))


def training_width(config: HermesAgentEnvConfig, endpoints: int) -> Width:
    """Of groups for training: `max_num_workers`, or what each endpoint is given."""
    size, usual = config.group_size, config.max_num_workers_per_node * endpoints
    if config.max_num_workers > 0:
        return Width(size, config.max_num_workers, min(usual, config.max_num_workers), config.max_num_workers)
    return Width(size, usual, usual, max(usual, config.max_live_sandboxes // size))


def evaluation_width(config: HermesAgentEnvConfig) -> Width:
    """Of the samples of one item. A group runs whole, so a bound below `eval_samples` still lets one run."""
    size = config.eval_samples
    usual = max(1, type(config).model_fields["max_eval_workers"].default // size)
    fixed = max(1, config.max_eval_workers // size)
    if "max_eval_workers" in config.model_fields_set:
        return Width(size, fixed, min(usual, fixed), fixed, "eval")
    return Width(size, fixed, fixed, max(fixed, config.max_live_sandboxes // size), "eval")
