"""Pressure control in simulated time: rollouts of several turns at engines of seven shapes, both limits as they are.

Nothing here waits or depends on the machine: the same seeds give the same figures. Each shape is tried with fixed
numbers of groups and with `auto`; what counts is the throughput of `auto` to that of the best fixed number, after a
first quarter of the time. `--sweep` tries other thresholds.
"""

import argparse
import heapq
import itertools
import json
import math
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from statistics import mean
from typing import Any

from hermes_rl.inference.concurrency_limiter import AIMDLimiter, LimiterConfig
from hermes_rl.inference.endpoint_pool import pick_endpoint
from hermes_rl.rollout.concurrency import ADJUST_EVERY, ConcurrencyConfig, rollout_limiter_config

GROUP, TURNS = 4, 8
SECONDS = 600.0
FIXED = (2, 4, 8, 12, 16, 24, 32, 48, 64)
FIRST, MOST = 8, 256
GOAL, REFUSED_GOAL = 0.85, 0.05
# What waits here, in parts of what engines bear: above the first nothing is added, above the second it is cut.
HELD = ((0.0, 0.25), (0.1, 0.5), (0.25, 0.5), (0.25, 1.0), (0.5, 1.0), (0.5, 2.0), (1.0, 2.0))
# By how much twice as many in flight must do more, at engines and for rollouts.
WORTH = (0.3, 0.2, 0.15, 0.1)


@dataclass(frozen=True)
class Kind:
    """An engine: `seconds` for a request, `width` at once. What is more `queues`, `refuses`, `batches` or `thrashes`.

    One that batches takes all, each the slower the more there are; one that thrashes does less the more there are.
    """

    does: str
    width: int = 32
    seconds: float = 2.0


@dataclass(frozen=True)
class Shape:
    engines: tuple[Kind, ...]
    tool: float = 0.0
    """Seconds in a tool after each turn."""


SHAPES = {
    "queues": Shape((Kind("queues"),)),
    "refuses": Shape((Kind("refuses"),)),
    "batches": Shape((Kind("batches"),)),
    "thrashes": Shape((Kind("thrashes"),)),
    "slow that queues, quick that refuses": Shape((Kind("queues", seconds=4.0), Kind("refuses", seconds=1.0))),
    "queues, with tools": Shape((Kind("queues"),), tool=6.0),
    "refuses, with tools": Shape((Kind("refuses"),), tool=6.0),
}


class Rollout:
    def __init__(self, turns: int, group: list["Rollout"]) -> None:
        self.left, self.group = turns, group
        self.engine: Engine | None = None
        self.tries = 0
        group.append(self)


@dataclass(eq=False)
class Engine:
    kind: Kind
    pressure: AIMDLimiter | None
    in_flight: int = 0
    computing: int = 0
    queue: deque[Rollout] = field(default_factory=deque)
    held: deque[Rollout] = field(default_factory=deque)

    @property
    def limit(self) -> int | None:
        return self.pressure.limit if self.pressure else None

    @property
    def full(self) -> bool:
        return self.kind.does in ("queues", "refuses") and self.computing >= self.kind.width

    def seconds(self) -> float:
        beyond = self.computing / self.kind.width
        match self.kind.does:
            case "batches":
                return self.kind.seconds * (1 + beyond)
            case "thrashes":
                return self.kind.seconds * max(1.0, beyond * math.sqrt(beyond))
        return self.kind.seconds


class Simulation:
    """With a `law` for rollouts, or so many groups at once."""

    def __init__(self, shape: Shape, law: LimiterConfig | int, seed: int) -> None:
        self.tool, self.chance = shape.tool, Random(seed)
        self.fixed = law if isinstance(law, int) else None
        self.rollouts = AIMDLimiter(law) if isinstance(law, LimiterConfig) else None
        self.engines = [
            Engine(kind, AIMDLimiter(LimiterConfig(min_gain=law.min_gain)) if isinstance(law, LimiterConfig) else None)
            for kind in shape.engines
        ]
        self.groups = self.answers = self.counted = self.refused = 0
        self.held = self.bearable = self.flying = self.queued = 0.0
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()

    def run(self) -> dict[str, float]:
        self._begin()
        self._watch()
        while self.now < SECONDS:
            at, _, what, whom = heapq.heappop(self._events)
            self._count(max(0.0, at - max(self.now, SECONDS / 4)))
            self.now = at
            what(*whom)
        seconds = 0.75 * SECONDS
        return {
            "answers_per_second": self.counted / seconds,
            "refused_per_answer": self.refused / max(1, self.counted),
            "held_to_bearable": self.held / max(1e-9, self.bearable),
            "waiting_at_engines": self.queued / seconds,
            "rollouts": self.flying / seconds,
        }

    def _count(self, seconds: float) -> None:
        self.held += seconds * sum(len(engine.held) for engine in self.engines)
        self.queued += seconds * sum(len(engine.queue) for engine in self.engines)
        self.bearable += seconds * sum(engine.limit or 0 for engine in self.engines)
        self.flying += seconds * self.groups * GROUP

    def _later(self, seconds: float, what: Callable[..., None], *whom: Any) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), what, whom))

    def _varied(self, value: float) -> float:
        return value * self.chance.uniform(0.5, 1.5)

    def _most(self) -> int:
        return max(1, self.rollouts.limit // GROUP) if self.rollouts else int(self.fixed or 1)

    def _begin(self) -> None:
        while self.groups < self._most():
            self.groups += 1
            if self.rollouts:
                self.rollouts.began(self.now, GROUP)
            group: list[Rollout] = []
            for rollout in [Rollout(max(1, round(self._varied(TURNS))), group) for _ in range(GROUP)]:
                self._ask(rollout)

    def _ask(self, rollout: Rollout) -> None:
        engine = rollout.engine = pick_endpoint(self.engines, rollout.engine)
        engine.in_flight += 1
        if engine.pressure is None or (engine.pressure.has_room and not engine.held):
            self._send(engine, rollout)
        else:
            engine.held.append(rollout)

    def _send(self, engine: Engine, rollout: Rollout) -> None:
        if engine.pressure:
            engine.pressure.began(self.now)
        if not engine.full:
            self._compute(engine, rollout)
        elif engine.kind.does == "refuses":
            self._later(0.01, self._refuse, engine, rollout)
        else:
            engine.queue.append(rollout)

    def _compute(self, engine: Engine, rollout: Rollout) -> None:
        engine.computing += 1
        self._later(self._varied(engine.seconds()), self._answer, engine, rollout)

    def _refuse(self, engine: Engine, rollout: Rollout) -> None:
        engine.in_flight -= 1
        self.refused += self.now > SECONDS / 4
        if engine.pressure:
            engine.pressure.refused(self.now)
            self._let_in(engine)
        rollout.tries += 1
        self._later(min(30.0, 0.25 * 2**rollout.tries) * self.chance.uniform(0.5, 1), self._ask, rollout)

    def _answer(self, engine: Engine, rollout: Rollout) -> None:
        engine.in_flight -= 1
        engine.computing -= 1
        self.answers += 1
        self.counted += self.now > SECONDS / 4
        if engine.queue:
            self._compute(engine, engine.queue.popleft())
        if engine.pressure:
            engine.pressure.answered(self.now)
            self._let_in(engine)
        rollout.left, rollout.tries = rollout.left - 1, 0
        if rollout.left:
            self._later(self._varied(self.tool), self._ask, rollout)
            return
        rollout.group.remove(rollout)
        if not rollout.group:
            self.groups -= 1
            if self.rollouts:
                self.rollouts.ended(self.now, GROUP)
            self._begin()

    def _let_in(self, engine: Engine) -> None:
        while engine.held and engine.pressure and engine.pressure.has_room:
            self._send(engine, engine.held.popleft())

    def _watch(self) -> None:
        """As the slots of an environment do."""
        if self.rollouts:
            held, bearable = (sum(len(one.held) for one in self.engines), sum(one.limit or 0 for one in self.engines))
            self.rollouts.observe_queue(self.now, held, bearable)
            if self.answers:
                self.rollouts.served(self.now, self.answers, self.answers)
            self.answers = 0
            self._begin()
            self._later(ADJUST_EVERY, self._watch)


def measured(shape: Shape, law: LimiterConfig | int, seeds: int) -> dict[str, float]:
    runs = [Simulation(shape, law, seed).run() for seed in range(1, seeds + 1)]
    return {name: round(mean(run[name] for run in runs), 4) for name in runs[0]}


def compared(best: dict[str, float], law: LimiterConfig, seeds: int) -> dict[str, dict[str, float]]:
    rows = {}
    for name, shape in SHAPES.items():
        row = measured(shape, law, seeds)
        rows[name] = {"to_best_fixed": round(row["answers_per_second"] / best[name], 4), **row}
        print(name, json.dumps(rows[name]), flush=True)
    return rows


def best_fixed(seeds: int) -> tuple[dict[str, float], dict[str, int]]:
    """For each shape the most answers a second, and the number of groups that gave it."""
    rates, widths = {}, {}
    for name, shape in SHAPES.items():
        tried = {groups: measured(shape, groups, seeds)["answers_per_second"] for groups in FIXED}
        widths[name] = max(tried, key=lambda groups: tried[groups])
        rates[name] = tried[widths[name]]
        print(f"{name}: best of the fixed {widths[name]} groups, {json.dumps(tried)}", flush=True)
    return rates, widths


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each (3)")
    parser.add_argument("--sweep", action="store_true", help="other thresholds too")
    given = parser.parse_args()
    rates, widths = best_fixed(1)
    law = rollout_limiter_config(ConcurrencyConfig(GROUP, FIRST, FIRST, MOST))
    result: dict[str, Any] = {"benchmark": "pressure_simulated", "best_fixed_groups": widths}
    result["figures"] = figures = compared(rates, law, given.seeds)
    if given.sweep:
        laws = {f"held {few} {many}": replace(law, low_queue=few, high_queue=many) for few, many in HELD}
        laws |= {f"worth {worth}": replace(law, min_gain=worth) for worth in WORTH}
        result["sweep"] = {name: compared(rates, one, given.seeds) for name, one in laws.items()}
    result["met"] = all(
        row["to_best_fixed"] >= GOAL and row["refused_per_answer"] <= REFUSED_GOAL for row in figures.values()
    )
    print(json.dumps(result))
    return 0 if result["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
