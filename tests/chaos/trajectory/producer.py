"""An environment of the chaos: makes its groups by number, spools and posts them by the real client, and may be killed.

python -m tests.chaos.trajectory.producer DIRECTORY NAME SEED PACE PLANT URL…: until DIRECTORY/../stop is there, then it
posts what is left and ends. Its ledger says `finished` once a group is in the spool, `answered` once the API has it.
PLANT is `none`, or `swap`: a fault for the referee to find.
"""

import asyncio
import sys
from collections.abc import Collection
from itertools import count
from pathlib import Path
from random import Random

from hermes_rl.api.client.connection import ApiError
from hermes_rl.api.client.delivery import Delivery
from hermes_rl.api.client.destination import ResumeState
from hermes_rl.api.client.native_destination import NativeDestination
from hermes_rl.api.client.spool import Spool
from hermes_rl.api.schemas import EnvironmentRegistration, Posted, WorkGrant
from hermes_rl.store.codec import open_group
from tests.chaos.trajectory.board import MAKING, SENDING, Board, Phase
from tests.chaos.trajectory.ledger import Ledger
from tests.chaos.trajectory.lots import Lot, make
from tests.chaos.trajectory.replicas import Event, ReplicaConnection

# Beyond so many groups that could not be posted, no more are made.
MOST_SPOOLED = 12
LAST_POSTS = 120.0
SWAPPED = 1


class ToldDestination:
    """The API as the client knows it, with all posts and answers told."""

    kind = NativeDestination.kind
    keeps_scores = NativeDestination.keeps_scores

    def __init__(self, connection: ReplicaConnection, name: str, ledger: Ledger, board: Board) -> None:
        self._connection, self._ledger, self._board = connection, ledger, board
        self._inner = NativeDestination(connection, EnvironmentRegistration(name=name))
        self._number = self._done = self._total = 0
        self.withheld = self._inner.withheld
        self.register = self._inner.register
        self.leave = self._inner.leave
        self.new_scores = self._inner.new_scores
        connection.watcher = self._watch

    def _watch(self, event: Event, path: str, count: int) -> None:
        if event is Event.SENT and path.endswith("/groups"):
            self._done += count
            self._tell_posting()

    def _tell_posting(self) -> None:
        self._board.tell(SENDING, Phase.POSTING, self._number, self._done, self._total, self._connection.port)

    async def work(self, *, running: int, wanted: int, cursor: int | None = None) -> WorkGrant:
        return await self._inner.work(running=running, wanted=wanted, cursor=cursor)

    async def post(self, data: bytes) -> Posted:
        self._number, self._done, self._total = int(open_group(data).group["draw"]), 0, len(data)
        self._tell_posting()
        try:
            posted = await self._inner.post(data)
        except ApiError as error:
            self._board.tell(SENDING, Phase.AWAY, self._number)
            self._ledger.write(unanswered=self._number, status=error.status)
            raise
        self._ledger.write(answered=self._number, new=posted.new)
        self._board.tell(SENDING, Phase.IDLE)
        return posted


async def produce(directory: Path, name: str, random: Random, pace: float, plant: str, urls: list[str]) -> int:
    """How many groups are left unposted."""
    board, ledger = Board(directory / "board"), Ledger(directory / "ledger")
    stop = directory.parent / "stop"
    connection = ReplicaConnection(urls)
    destination = ToldDestination(connection, name, ledger, board)
    async with connection, Spool(directory / "spool") as spool:
        board.tell(MAKING, Phase.RESUMING)
        standing = await destination.register()
        board.tell(SENDING, Phase.IDLE)
        async with Delivery(destination, spool) as delivery:
            for number in missing(standing, spool.draws):
                if not await admitted(destination, spool, Lot(name, number), board, stop):
                    break
                lot = Lot(name, swapped(number) if plant == "swap" else number)
                board.tell(MAKING, Phase.ENCODING, lot.number)
                data = await asyncio.to_thread(make, lot)
                board.tell(MAKING, Phase.SPOOLING, lot.number)
                await delivery.put(data, lot.number)
                ledger.write(finished=lot.number)
                board.tell(MAKING, Phase.IDLE)
                await asyncio.sleep(random.uniform(0, pace))
            left = await delivery.flush(LAST_POSTS)
        await destination.leave()
    return left


def missing(standing: ResumeState, spooled: Collection[int]) -> "filter[int]":
    """The numbers from the cursor on that are neither with the API nor in the spool."""
    return filter(lambda number: number not in standing.done and number not in spooled, count(standing.cursor or 0))


async def admitted(destination: ToldDestination, spool: Spool, lot: Lot, board: Board, stop: Path) -> bool:
    """Wait until the next group may be begun; False when no more are wanted."""
    while not stop.exists():
        board.tell(MAKING, Phase.IDLE)
        # All below the cursor is with the API, so that a spool that is lost leaves no hole.
        cursor = min(lot.number, *spool.draws) if spool.draws else lot.number
        try:
            granted = (await destination.work(running=0, wanted=lot.rollouts, cursor=cursor)).granted
        except ApiError:
            # Nobody can say no, and the spool is there for this.
            granted = lot.rollouts
        if granted and len(spool) < MOST_SPOOLED:
            return True
        await asyncio.sleep(0.1)
    return False


def swapped(number: int) -> int:
    return {SWAPPED: SWAPPED + 1, SWAPPED + 1: SWAPPED}.get(number, number)


if __name__ == "__main__":
    place, name, seed, pace, plant, *urls = sys.argv[1:]
    sys.exit(1 if asyncio.run(produce(Path(place), name, Random(seed), float(pace), plant, urls)) else 0)
