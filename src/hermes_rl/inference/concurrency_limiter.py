"""AIMDLimiter: how many requests may be in flight, raised while throughput gains and cut at signs of queueing.

Pure: no clock and no I/O, the caller passes the time with each event. The limit stays between `minimum` and `maximum`,
so it is never 0. It grows only after a round that reached it without trouble, and is cut once per round, to a third at
the lowest. A lost engine restarts at `minimum` and regains half of its old limit as soon as it answers again.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

# Rounds are compared only when their requests in flight differ by this factor; closer ones differ by chance.
MIN_RATIO = 1.9
# The best time decays by this factor each round, because conversations grow longer.
BEST_TIME_DECAY = 1.02
# A cut to this fraction must reduce the time to that fraction. Otherwise the work itself has become slower.
CUT, QUICKER = 0.7, 0.85


class Point(NamedTuple):
    """One measured round: mean requests in flight, and work per second."""

    in_flight: float
    throughput: float

    @property
    def seconds(self) -> float:
        """Time per unit of work, by Little's law."""
        return self.in_flight / self.throughput


class ThroughputProbe:
    """Decides whether more requests in flight add throughput, or only a queue.

    Doubling the requests in flight must raise throughput by the fraction `min_gain`; a round that takes more than
    `max_slowdown` times the best time is slow. A verdict that no cut can change is dropped, so that slower work cannot
    hold the limit down forever.
    """

    def __init__(self, min_gain: float, max_slowdown: float) -> None:
        self._min_gain, self._max_slowdown = min_gain, max_slowdown
        self.reset()

    def reset(self) -> None:
        self.baseline: Point | None = None
        """The last round that gained enough."""
        self._best: float | None = None
        self._slow_since: Point | None = None
        """The first slow round, until a round is no longer slow."""

    def shows_queue(self, point: Point) -> bool:
        if point.throughput <= 0 or point.in_flight <= 0:
            return False
        slow = self._is_slow(point)
        baseline = self.baseline
        if baseline is None or point.in_flight <= baseline.in_flight:
            self.baseline = point
            return slow
        ratio = point.in_flight / baseline.in_flight
        if ratio < MIN_RATIO:
            return slow
        gain = (point.throughput / baseline.throughput - 1) / (ratio - 1)
        if gain < self._min_gain:
            return True
        self.baseline = point
        return slow

    def _is_slow(self, point: Point) -> bool:
        seconds = point.seconds
        self._best = seconds if self._best is None else min(seconds, self._best * BEST_TIME_DECAY)
        if seconds <= self._max_slowdown * self._best:
            self._slow_since = None
            return False
        before = self._slow_since
        if before and point.in_flight <= CUT * before.in_flight and seconds > QUICKER * before.seconds:
            self._best, self._slow_since = seconds, None
            return False
        self._slow_since = before or point
        return True


# Minimum answers in each half of a round; with fewer, their duration is chance.
MIN_ANSWERS = 16
# Smallest fraction of the limit that remains after one round.
MIN_REMAINING = 1 / 3
# Consecutive losses after which nothing in flight is expected to come back.
LOST_AFTER = 2


@dataclass(frozen=True, slots=True)
class LimiterConfig:
    """How the limit moves. Clients that share an engine with the same settings share it by `weight`."""

    initial: int = 8
    minimum: int = 1
    maximum: int = 512
    unit: int = 1
    """How many start together; the limit counts as reached when no further unit fits below it."""
    weight: float = 1.0
    queue_backoff: float = 0.8
    """Fraction of the limit that remains after a queue was seen."""
    refusal_backoff: float = 0.9
    """After a refusal: this fraction of what is still in flight, since that much had room."""
    max_growth: float = 1 / 16
    """Largest relative growth per round after the first cut."""
    min_gain: float = 0.2
    """Doubling the requests in flight must raise throughput by this fraction, or the added ones only queue."""
    max_slowdown: float = 4.0
    """A round is too slow when the same work takes this many times the best round's time."""
    low_queue: float = 0.25
    high_queue: float = 1.0
    """Queued requests as fractions of the engines' capacity: above `low_queue` no growth, above `high_queue` a cut."""

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.maximum:
            raise ValueError(f"1 <= minimum <= maximum does not hold for {self.minimum} and {self.maximum}")


@dataclass(slots=True)
class _Round:
    """Half a round to settle, since its first answers belong to requests sent before; then half a round to measure."""

    limit: float
    """At the start of the round."""
    cut: bool = False
    """The round started with a cut."""
    refused: bool = False
    half: int = MIN_ANSWERS
    answers: int = 0
    measuring_since: float | None = None
    peak: int = 0
    work: float = 0.0
    in_flight: float = 0.0
    queued: float = 0.0
    capacity: float = 0.0


class AIMDLimiter:
    """Limits one engine's requests, or the rollouts that use several engines, to `limit` in flight.

    `cuts` counts decreases of the limit, `refusals` refused requests (429) and `losses` failed ones.
    """

    def __init__(self, config: LimiterConfig) -> None:
        self.config = config
        self.in_flight = 0
        self.cuts = self.refusals = self.losses = 0
        self._limit = float(min(max(config.initial, config.minimum), config.maximum))
        self._doubling = True
        """Until the first cut."""
        self._good_rounds = 0
        self._consecutive_losses = self._consecutive_refusals = 0
        self._recovery_target = 0.0
        """After a loss the limit recovers up to here, by one per answer."""
        self._sent_before_loss = 0
        """Requests still in flight from before the loss; their outcome says nothing new."""
        self._queued = self._capacity = 0
        self._now = 0.0
        self._probe = ThroughputProbe(config.min_gain, config.max_slowdown)
        self._round = self._new_round()

    @property
    def limit(self) -> int:
        return round(self._limit)

    @property
    def has_room(self) -> bool:
        return self.in_flight < self.limit

    @property
    def is_lost(self) -> bool:
        """Whether the engine counts as down until it answers something."""
        return self._consecutive_losses >= LOST_AFTER

    @property
    def refuses_all(self) -> bool:
        """Whether many requests were refused and none answered, so that a lower limit would not help."""
        return self._consecutive_refusals >= MIN_ANSWERS

    def began(self, now: float, count: int = 1) -> None:
        self._advance(now)
        self.in_flight += count
        self._round.peak = max(self._round.peak, self.in_flight)

    def ended(self, now: float, count: int = 1) -> None:
        """No longer in flight, with an outcome that says nothing about the engine."""
        self._advance(now)
        self.in_flight = max(0, self.in_flight - count)
        self._sent_before_loss = max(0, self._sent_before_loss - count)

    def served(self, now: float, work: float = 1.0, answers: int = 1) -> None:
        """Record finished work: tokens, or answers where tokens are not counted."""
        self._advance(now)
        self._consecutive_losses = self._consecutive_refusals = 0
        if self._limit < self._recovery_target:
            self._limit = min(self._limit + answers, self._recovery_target)
            self._round = self._new_round()
        else:
            self._round.work += work
            self._count_answers(now, answers)

    def answered(self, now: float, work: float = 1.0) -> None:
        self.ended(now)
        self.served(now, work)

    def refused(self, now: float) -> None:
        """The engine had no room: it has room for at most what is still in flight."""
        self.ended(now)
        self.refusals += 1
        self._consecutive_refusals += 1
        if self._sent_before_loss:
            return
        if not self._round.cut or self._limit < self._recovery_target:
            self._begin_cut_round()
        floor = max(MIN_REMAINING * self._round.limit, self.config.minimum)
        self._limit = min(self._limit, max(floor, self.config.refusal_backoff * self.in_flight))
        self._round.refused = True
        self._count_answers(now, 1)

    def lost(self, now: float) -> None:
        """The request failed or timed out. A single one says little about the engine."""
        self.ended(now)
        self.losses += 1
        self._consecutive_losses += 1
        if not self.is_lost or self._limit <= self.config.minimum:
            return
        if not self._sent_before_loss:
            half = max(self._limit, self._recovery_target) / 2
            self._begin_cut_round()
            self._recovery_target, self._sent_before_loss = half, self.in_flight
        self._limit = float(self.config.minimum)

    def observe_queue(self, now: float, queued: int, capacity: int) -> None:
        """Record the requests queued on our side and the engines' capacity, valid until the next call."""
        self._advance(now)
        self._queued, self._capacity = queued, capacity

    def _advance(self, now: float) -> None:
        seconds, self._now = max(0.0, now - self._now), max(now, self._now)
        current = self._round
        if current.measuring_since is not None:
            current.in_flight += seconds * self.in_flight
            current.queued += seconds * self._queued
            current.capacity += seconds * self._capacity

    def _count_answers(self, now: float, answers: int) -> None:
        current = self._round
        current.answers += answers
        if current.measuring_since is None:
            if current.answers >= current.half:
                current.measuring_since, current.work, current.peak, current.refused = now, 0.0, self.in_flight, False
        elif current.answers >= 2 * current.half and now > current.measuring_since:
            self._end_round(now - current.measuring_since)

    def _end_round(self, seconds: float) -> None:
        current, config = self._round, self.config
        queueing = self._probe.shows_queue(Point(current.in_flight / seconds, current.work / seconds))
        overfull = current.queued > config.high_queue * current.capacity
        reached = current.peak > self.limit - config.unit
        # Until the previous cut has taken effect, its result cannot be measured.
        if (queueing or overfull) and self.in_flight <= self.limit:
            self._cut(queueing=queueing)
            return
        if (
            not (queueing or overfull or current.refused)
            and current.queued <= config.low_queue * current.capacity
            and current.work
            and reached
        ):
            self._grow()
        self._round = self._new_round()

    def _cut(self, *, queueing: bool) -> None:
        if self._limit <= self.config.minimum:
            self._probe.reset()
            self._round = self._new_round()
            return
        self._begin_cut_round()
        baseline = self._probe.baseline
        lower = self.config.queue_backoff * self._limit
        if queueing and baseline is not None:
            lower = min(lower, self.config.queue_backoff * baseline.in_flight)
        self._limit = max(lower, MIN_REMAINING * self._round.limit, float(self.config.minimum))

    def _begin_cut_round(self) -> None:
        self.cuts += 1
        self._good_rounds, self._doubling, self._recovery_target = 0, False, 0.0
        self._round = self._new_round(cut=True)

    def _grow(self) -> None:
        config = self.config
        if self._doubling:
            grown = 2 * self._limit
        else:
            self._good_rounds += 1
            max_step = max(float(config.unit), config.max_growth * self._limit)
            grown = self._limit + config.weight * min(float(self._good_rounds * config.unit), max_step)
        self._limit = min(grown, float(config.maximum))

    def _new_round(self, *, cut: bool = False) -> _Round:
        return _Round(self._limit, cut, half=max(math.ceil(self._limit), MIN_ANSWERS))
