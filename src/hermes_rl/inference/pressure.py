"""Pressure: how much may be in flight at once, by how it is borne: more while more helps, less at a sign of strain.

Always true: there is no clock and no I/O here; time comes in with what is observed. The limit stays between `least` and
`most`, so it is never 0. It grows only after a round in which it was reached and nothing was wrong, and falls once in a
round, to a third at most. An engine that is lost begins anew with `least`, and has half of what it had as soon as it
answers again.
"""

import math
from dataclasses import dataclass

from hermes_rl.inference.gains import Gains, Point

# Answers in each half of a round, at least: of fewer, chance decides how long they took.
FEWEST = 16
# What is left of a limit after a round, at least.
LEFT = 1 / 3
# Losses in a row after which nothing that is in flight is believed to come back.
LOST = 2


@dataclass(frozen=True, slots=True)
class Law:
    """How a limit moves. Whatever shares an engine under the same law shares it by `weight`."""

    first: int = 8
    least: int = 1
    most: int = 512
    unit: int = 1
    """What begins together; the limit counts as reached when no more of these fit below it."""
    weight: float = 1.0
    cut: float = 0.8
    """What is left of it after a queue was seen."""
    back: float = 0.9
    """After a refusal: this part of what was still in flight, and so had room."""
    finest: float = 1 / 16
    """The greatest part of itself that a limit grows by, once it has met its first strain."""
    worth: float = 0.2
    """With twice as much in flight, throughput must grow by this part, or what was added only waits."""
    slowest: float = 4.0
    """So many times the time of the best round, for the same work, is too slow."""
    few_held: float = 0.25
    many_held: float = 1.0
    """Parts of what the engines bear: with more than `few_held` waiting nothing is added, above the other it is cut."""

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"1 <= least <= most is not so for {self.least} and {self.most}")


@dataclass(slots=True)
class _Round:
    """As many answers as the limit to settle, then as many to measure: the first of them were asked for before."""

    limit: float
    """At its beginning."""
    cut: bool = False
    """It began with a cut."""
    refused: bool = False
    half: int = FEWEST
    answers: int = 0
    began: float | None = None
    """When measuring did."""
    peak: int = 0
    work: float = 0.0
    in_flight: float = 0.0
    held: float = 0.0
    bearable: float = 0.0


class Pressure:
    """The limit of one engine's requests, or of the rollouts that ask several: `limit` is what may be in flight.

    `cuts` counts how often it was lowered, `refusals` and `losses` what was refused (429) and what failed.
    """

    def __init__(self, law: Law) -> None:
        self.law = law
        self.in_flight = 0
        self.cuts = self.refusals = self.losses = 0
        self._limit = float(min(max(law.first, law.least), law.most))
        self._doubling = True
        """Until the first strain."""
        self._well = 0
        self._lost = self._refused = 0
        self._regain_to = 0.0
        """What is given back, one for each answer, to an engine that was lost."""
        self._older = 0
        """Still in flight of what began before that: how it ends is no news."""
        self._held = self._bearable = 0
        self._last = 0.0
        self._gains = Gains(law.worth, law.slowest)
        self._round = self._new_round()

    @property
    def limit(self) -> int:
        return round(self._limit)

    @property
    def has_room(self) -> bool:
        return self.in_flight < self.limit

    @property
    def is_lost(self) -> bool:
        """Whether nothing is believed of it until something is answered."""
        return self._lost >= LOST

    @property
    def refuses_all(self) -> bool:
        """Whether nothing was answered among many that were refused: it is not its size that is wrong."""
        return self._refused >= FEWEST

    def began(self, now: float, count: int = 1) -> None:
        self._pass_time(now)
        self.in_flight += count
        self._round.peak = max(self._round.peak, self.in_flight)

    def ended(self, now: float, count: int = 1) -> None:
        """No more in flight, and nothing is learned from it."""
        self._pass_time(now)
        self.in_flight = max(0, self.in_flight - count)
        self._older = max(0, self._older - count)

    def served(self, now: float, work: float = 1.0, answers: int = 1) -> None:
        """So much work was done: tokens, or answers where they are not counted."""
        self._pass_time(now)
        self._lost = self._refused = 0
        if self._limit < self._regain_to:
            self._limit = min(self._limit + answers, self._regain_to)
            self._round = self._new_round()
        else:
            self._round.work += work
            self._step(now, answers)

    def answered(self, now: float, work: float = 1.0) -> None:
        self.ended(now)
        self.served(now, work)

    def refused(self, now: float) -> None:
        """There was no room for it: what is still in flight is what fits, or more."""
        self.ended(now)
        self.refusals += 1
        self._refused += 1
        if self._older:
            return
        if not self._round.cut or self._limit < self._regain_to:
            self._begin_cut_round()
        floor = max(LEFT * self._round.limit, self.law.least)
        self._limit = min(self._limit, max(floor, self.law.back * self.in_flight))
        self._round.refused = True
        self._step(now, 1)

    def lost(self, now: float) -> None:
        """It failed, or was not answered in time. One alone says little of the engine."""
        self.ended(now)
        self.losses += 1
        self._lost += 1
        if not self.is_lost or self._limit <= self.law.least:
            return
        if not self._older:
            half = max(self._limit, self._regain_to) / 2
            self._begin_cut_round()
            self._regain_to, self._older = half, self.in_flight
        self._limit = float(self.law.least)

    def waits(self, now: float, held: int, bearable: int) -> None:
        """So many requests wait here for engines that bear so many at once; it holds until told otherwise."""
        self._pass_time(now)
        self._held, self._bearable = held, bearable

    def _pass_time(self, now: float) -> None:
        seconds, self._last = max(0.0, now - self._last), max(now, self._last)
        current = self._round
        if current.began is not None:
            current.in_flight += seconds * self.in_flight
            current.held += seconds * self._held
            current.bearable += seconds * self._bearable

    def _step(self, now: float, answers: int) -> None:
        current = self._round
        current.answers += answers
        if current.began is None:
            if current.answers >= current.half:
                current.began, current.work, current.peak, current.refused = now, 0.0, self.in_flight, False
        elif current.answers >= 2 * current.half and now > current.began:
            self._end_round(now - current.began)

    def _end_round(self, seconds: float) -> None:
        current, law = self._round, self.law
        poor = self._gains.poor(Point(current.in_flight / seconds, current.work / seconds))
        many = current.held > law.many_held * current.bearable
        few = current.held <= law.few_held * current.bearable
        # What a cut has not taken out yet cannot be measured by it.
        if (poor or many) and self.in_flight <= self.limit:
            self._cut(poor=poor)
        elif few and not (poor or many or current.refused) and current.work and current.peak > self.limit - law.unit:
            self._grow()
            self._round = self._new_round()
        else:
            self._round = self._new_round()

    def _cut(self, *, poor: bool) -> None:
        if self._limit <= self.law.least:
            self._gains.forget()
            self._round = self._new_round()
            return
        self._begin_cut_round()
        ground = self._gains.ground
        less = self.law.cut * self._limit
        if poor and ground is not None:
            less = min(less, self.law.cut * ground.in_flight)
        self._limit = max(less, LEFT * self._round.limit, float(self.law.least))

    def _begin_cut_round(self) -> None:
        self.cuts += 1
        self._well, self._doubling, self._regain_to = 0, False, 0.0
        self._round = self._new_round(cut=True)

    def _grow(self) -> None:
        law = self.law
        if self._doubling:
            grown = 2 * self._limit
        else:
            self._well += 1
            finest = max(float(law.unit), law.finest * self._limit)
            grown = self._limit + law.weight * min(float(self._well * law.unit), finest)
        self._limit = min(grown, float(law.most))

    def _new_round(self, *, cut: bool = False) -> _Round:
        return _Round(self._limit, cut, half=max(math.ceil(self._limit), FEWEST))
