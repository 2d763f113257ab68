"""The course of a run of `serve`: work is asked for and begun, until there is no more or it is told to stop.

Always true: without a grant nothing begins; the API hears of the environment every few seconds, to the end; the groups
in flight when work is no longer taken are finished, as far as there is time.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes_rl.api.client.connection import ApiError
from hermes_rl.api.client.delivery import Delivery
from hermes_rl.api.client.destination import Destination
from hermes_rl.api.client.spool import Spool
from hermes_rl.api.wire import WorkGrant
from hermes_rl.environment.contract import Environment
from hermes_rl.environment.generation import training_slots
from hermes_rl.environment.metrics import Tally
from hermes_rl.environment.serve_display import Board
from hermes_rl.environment.serving.evaluating import Evaluations
from hermes_rl.environment.serving.flight import Flight
from hermes_rl.environment.serving.place import Place
from hermes_rl.stopping import Stop, Stopped

HEARTBEAT = 3.0
# How soon it asks again where it was granted less than it wanted, or the API is away.
AGAIN = 0.5
# Groups that end together are asked for together.
GATHER = 0.05
LEAVE_TIME = 2.0
# The part of the time to stop that is kept for the delivery of the last groups, and its most in seconds.
FOR_DELIVERY, MOST_FOR_DELIVERY = 0.2, 5.0
NO_MORE_ITEMS = "there are no more items"


@dataclass(frozen=True, slots=True)
class Served:
    """What a run came to. `given_up` counts groups in flight at its end, `left` those in `spool` for the next one."""

    ended: str
    tally: Tally
    spool: Path
    left: int
    version: int | None = None
    given_up: int = 0
    posted: int = 0
    refused: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Groups that this API cannot take, by cause."""

    def summary(self) -> dict[str, Any]:
        return {
            **self.tally.summary(),
            "ended": self.ended,
            "version": self.version,
            "given_up": self.given_up,
            "posted": self.posted,
            "refused": self.refused,
            "left_out": dict(self.left_out),
            "left_in_spool": self.left,
            "spool": str(self.spool),
        }


class Course:
    """From the first question for work to the leave."""

    def __init__(
        self,
        env: Environment,
        destination: Destination,
        delivery: Delivery,
        spool: Spool,
        place: Place,
        board: Board,
        stop: Stop,
    ) -> None:
        self._env, self._stop, self._board = env, stop, board
        self._destination, self._delivery, self._spool, self._place = destination, delivery, spool, place
        self._size = env.config.group_size
        self._slots = training_slots(env)
        self._flight = Flight(env, delivery, place, board, self._slots)
        self._evaluations = Evaluations(env, board)
        self._asking = asyncio.Lock()
        self._heard_at = 0.0
        self._granted = 0
        """Groups that may begin and wait for their items."""
        board.delivery, board.withheld_there = delivery, destination.withheld

    async def run(self) -> Served:
        board, flight = self._board, self._flight
        board.state = "serving"
        heard = asyncio.create_task(self._stay_heard())
        try:
            async with self._slots.watching(flight.changed.set):
                ended = await self._take_work_until_told()
                await self._evaluations.close()
                await self._finish_groups()
        finally:
            await flight.give_up()
            await self._evaluations.close()
            heard.cancel()
        # From here on there is a deadline also for a run that ended by itself.
        self._stop.tell(ended)
        board.state, board.waiting = f"stopping ({ended})", "the API is to take the last groups"
        if flight.window.groups:
            await self._log()
        left = await self._delivery.flush(self._stop.left())
        await self._leave()
        board.state, board.waiting = f"ended ({ended})", None
        if flight.errors:
            raise flight.errors[0]
        return Served(
            ended=ended,
            tally=board.tally,
            spool=self._spool.directory,
            left=left,
            version=board.version,
            given_up=flight.given_up,
            posted=self._delivery.posted,
            refused=self._delivery.refused,
            left_out=self._destination.withheld,
        )

    async def _take_work_until_told(self) -> str:
        """Why no more work is taken."""
        try:
            return await self._stop.unless(self._take_work())
        except Stopped:
            return str(self._stop.reason)
        except Exception as error:  # noqa: BLE001 (whatever it is, the groups in flight are kept)
            self._flight.errors.append(error)
            return "an error"

    async def _take_work(self) -> str:
        board, tally, total = self._board, self._board.tally, self._env.config.total_steps
        while not self._flight.errors:
            tally.limit = tally.budget.reached()
            if tally.limit:
                return tally.limit
            free = self._free()
            grant = await self._ask(free)
            if grant is not None and grant.version >= total:
                board.version = grant.version
                # Nobody would train on what is in flight, so it is not waited for longer than on a signal.
                self._stop.tell(f"the policy is at version {grant.version} of {total}")
                return str(self._stop.reason)
            if grant is not None:
                await self._see(grant)
                # The version may have begun an evaluation; what is not used of the grant the next question gives back.
                if not await self._begin(min(groups_of(grant.granted, self._size), self._free())):
                    return NO_MORE_ITEMS
            short = grant is None or grant.granted < free * self._size or self._evaluations.running
            await self._until_due(AGAIN if short else HEARTBEAT)
        return "an error"

    def _free(self) -> int:
        """How many more groups may run at once."""
        if self._env.config.evaluation_only:
            return 0
        self._board.most, self._board.engines = self._slots.most, self._slots.told()
        return max(0, self._evaluations.allowed(self._board.most) - len(self._flight))

    async def _begin(self, groups: int) -> bool:
        """False when there are no more items."""
        self._granted = groups
        try:
            while self._granted:
                draw = await self._env.next_draw(self._place.past)
                if draw is None:
                    return False
                self._granted -= 1
                self._flight.begin(draw)
        finally:
            self._granted = 0
        return True

    async def _ask(self, groups: int) -> WorkGrant | None:
        """Say what runs and ask for so many groups more; None while the API is away."""
        async with self._asking:
            self._heard_at = time.monotonic()
            # The API counts what is in the spool neither as running nor as waiting, and will have it soon.
            running = (len(self._flight) + self._granted + len(self._spool)) * self._size
            try:
                return await self._destination.work(
                    running=running, wanted=groups * self._size, cursor=self._place.cursor(self._spool.draws)
                )
            except ApiError as error:
                if 400 <= error.status < 500 and error.status != 429:
                    raise
                self._board.waiting = error.message
                return None

    async def _see(self, grant: WorkGrant) -> None:
        board, evaluations = self._board, self._evaluations
        moved, board.version, board.waiting = board.version != grant.version, grant.version, grant.waiting
        self._env.server.oldest_useful = grant.oldest
        # One that wants no work is told to wait only while there is no trainer, and so no policy to evaluate.
        if not (self._env.config.evaluation_only and grant.waiting):
            evaluations.see(grant.version)
        if evaluations.running and not evaluations.allowed(board.most):
            board.waiting = "an evaluation runs"
        if moved and self._flight.window.groups >= max(1, self._env.config.min_items_sent_before_logging):
            await self._log()

    async def _until_due(self, seconds: float) -> None:
        """Until a group ends, for so long at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._flight.changed.wait()
                await asyncio.sleep(GATHER)
        self._flight.changed.clear()

    async def _finish_groups(self) -> None:
        """Let what is in flight finish: as long as it takes, or to the deadline once it is told to stop."""
        board, flight = self._board, self._flight
        with suppress(Stopped):
            await self._stop.unless(flight.landed())
        if flight:
            board.state, board.waiting = f"stopping ({self._stop.reason})", "groups in flight are finished"
            reserved = min(FOR_DELIVERY * self._env.config.stop_timeout, MOST_FOR_DELIVERY)
            await flight.landed(max(0.0, self._stop.left() - reserved))

    async def _stay_heard(self) -> None:
        """Speak up where nothing else does, as while an item is waited for: who falls silent is taken for dead."""
        while True:
            await asyncio.sleep(HEARTBEAT)
            if time.monotonic() - self._heard_at >= HEARTBEAT:
                with suppress(ApiError):
                    await self._ask(0)

    async def _leave(self) -> None:
        """Say where it stands and that it goes; an API that cannot be told learns it by the silence."""
        with suppress(ApiError, TimeoutError):
            async with asyncio.timeout(LEAVE_TIME):
                await self._ask(0)
                await self._destination.leave()

    async def _log(self) -> None:
        """A line of metrics: what was made since the last one, and how the delivery stands."""
        board, delivery = self._board, self._delivery
        standing = {
            "version": board.version,
            "groups": board.tally.groups,
            "groups_a_second": board.rate(),
            "posted": delivery.posted,
            "refused": delivery.refused,
            "spooled": delivery.spooled,
        }
        train = {f"train/{name}": value for name, value in self._flight.take_window().summary().items()}
        served = {f"serve/{name}": value for name, value in standing.items()}
        await self._env.wandb_log(train | served | self._slots.figures())


def groups_of(rollouts: int, size: int) -> int:
    """How many groups begin for a grant.

    A rest that is less than a group begins one too: groups of 12 fill a batch of 32 only with a third, for which there
    is never room left but for 8.
    """
    return -(-rollouts // size)
