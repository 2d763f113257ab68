"""Where a limit settles, on engines that are simulated: requests without an end, as many in flight as it allows."""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from statistics import median

import pytest

from hermes_rl.inference.concurrency_limiter import AIMDLimiter, LimiterConfig


class Engine:
    """Computes `width` requests at once, each for a second or so; the others wait, or are refused."""

    def __init__(self, width: int, *, refuses: bool, seed: int = 1) -> None:
        self.width, self.refuses, self.chance = width, refuses, Random(seed)
        self.running = 0

    def seconds(self) -> float:
        return self.chance.uniform(0.7, 1.3)


class Played:
    """What came of it after a first quarter of the time, in which the limits are still looking for their place."""

    def __init__(self, engine: Engine, pressures: Sequence[AIMDLimiter], seconds: float) -> None:
        self.engine, self.pressures = engine, pressures
        self.answers = [0] * len(pressures)
        self.refused = 0
        self.waited = 0.0
        self.seconds = 0.75 * seconds
        self._events: list[tuple[float, int, Callable[[int], None], int]] = []
        self._order = itertools.count()
        self._waiting: deque[int] = deque()
        self._begin, self._now = seconds / 4, 0.0
        while self._now < seconds:
            for who, pressure in enumerate(pressures):
                while pressure.has_room:
                    self._ask(who)
            at, _, what, who = heapq.heappop(self._events)
            if at > self._begin:
                self.waited += (at - max(self._now, self._begin)) * len(self._waiting) / self.seconds
            self._now = at
            what(who)

    def _ask(self, who: int) -> None:
        self.pressures[who].began(self._now)
        if self.engine.running < self.engine.width:
            self._start(who)
        elif self.engine.refuses:
            self._later(0.01, self._refuse, who)
        else:
            self._waiting.append(who)

    def _start(self, who: int) -> None:
        self.engine.running += 1
        self._later(self.engine.seconds(), self._finish, who)

    def _finish(self, who: int) -> None:
        self.engine.running -= 1
        self.pressures[who].answered(self._now)
        self.answers[who] += self._now > self._begin
        if self._waiting:
            self._start(self._waiting.popleft())

    def _refuse(self, who: int) -> None:
        self.pressures[who].refused(self._now)
        self.refused += self._now > self._begin

    def _later(self, seconds: float, what: Callable[[int], None], who: int) -> None:
        heapq.heappush(self._events, (self._now + seconds, next(self._order), what, who))


@pytest.mark.parametrize("width", [2, 4, 16, 64, 200])
def test_an_engine_that_refuses_is_kept_full_and_refuses_little(width: int) -> None:
    played = Played(Engine(width, refuses=True), [AIMDLimiter(LimiterConfig())], 500)
    assert sum(played.answers) >= 0.9 * width * played.seconds
    assert played.refused <= 0.04 * sum(played.answers)


@pytest.mark.parametrize("width", [2, 4, 16, 64, 200])
def test_an_engine_that_queues_is_kept_full_and_its_queue_short(width: int) -> None:
    played = Played(Engine(width, refuses=False), [AIMDLimiter(LimiterConfig())], 500)
    assert sum(played.answers) >= 0.9 * width * played.seconds
    assert played.waited <= max(2 * width, 4)


@pytest.mark.parametrize("refuses", [True, False])
def test_environments_that_share_an_engine_get_even_parts_of_it(refuses: bool) -> None:
    times = []
    for seed in range(1, 4):
        pressures = [AIMDLimiter(LimiterConfig(initial=first)) for first in (4, 64)]
        played = Played(Engine(64, refuses=refuses, seed=seed), pressures, 2000)
        small, large = sorted(played.answers)
        times.append(large / small)
        assert sum(played.answers) >= 0.9 * 64 * played.seconds
    assert median(times) <= 1.7


def test_environments_share_an_engine_by_their_weights() -> None:
    times = []
    for seed in range(1, 4):
        pressures = [AIMDLimiter(LimiterConfig(weight=weight)) for weight in (1.0, 3.0)]
        light, heavy = Played(Engine(64, refuses=True, seed=seed), pressures, 2000).answers
        times.append(heavy / light)
    assert 1.5 <= median(times) <= 5


def test_an_engine_that_becomes_smaller_is_followed() -> None:
    engine, pressure = Engine(64, refuses=True), AIMDLimiter(LimiterConfig())
    Played(engine, [pressure], 200)
    engine.width, engine.running, pressure.in_flight = 8, 0, 0
    played = Played(engine, [pressure], 200)
    assert pressure.limit <= 10
    assert sum(played.answers) >= 0.85 * 8 * played.seconds
