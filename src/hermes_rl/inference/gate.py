"""Gate: lets requests through to an engine as its pressure allows, in the order they came.

Always true: whoever passed is counted in flight until it is told what became of it; one that is cancelled while it
waits leaves no trace; while nothing is in flight nobody waits; whoever waits for an engine when it is lost is told.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from hermes_rl.inference.pressure import Pressure


class TurnedAwayError(Exception):
    """The engine is lost or leaves; whoever waited for it is to ask elsewhere."""


class Gate:
    """`enter` waits for room. Then exactly one of `answered`, `refused`, `lost` and `gone` is to be called."""

    def __init__(self, pressure: Pressure, clock: Callable[[], float] = time.monotonic) -> None:
        self.pressure = pressure
        self._clock = clock
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def held(self) -> int:
        """How many wait."""
        return len(self._waiting)

    async def enter(self) -> None:
        """TurnedAwayError when the engine is lost meanwhile."""
        if not self._waiting and self.pressure.has_room:
            self.pressure.began(self._clock())
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                # Whoever let others in meanwhile may have passed it over already.
                with suppress(ValueError):
                    self._waiting.remove(turn)
            elif turn.exception() is None:
                self.gone()
            raise

    def answered(self, work: float) -> None:
        self.pressure.answered(self._clock(), work)
        self._let_in()

    def refused(self) -> None:
        self.pressure.refused(self._clock())
        self._let_in()

    def lost(self) -> None:
        self.pressure.lost(self._clock())
        if self.pressure.is_lost:
            self.turn_away()
        self._let_in()

    def gone(self) -> None:
        """Cancelled, or wrong in itself: it says nothing of the engine."""
        self.pressure.ended(self._clock())
        self._let_in()

    def turn_away(self) -> None:
        """Whoever waits is to ask elsewhere."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(TurnedAwayError())

    def _let_in(self) -> None:
        while self._waiting and self.pressure.has_room:
            turn = self._waiting.popleft()
            if not turn.done():
                self.pressure.began(self._clock())
                turn.set_result(None)
