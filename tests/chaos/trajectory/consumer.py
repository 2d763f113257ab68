"""A trainer of the chaos: leases batches, reads and checks them, and remembers as a checkpoint would; may be killed.

python -m tests.chaos.trajectory.consumer DIRECTORY SEED PACE PLANT URL…: until DIRECTORY/../drain is there and nothing
is left to lease. Its ledger says `leased`, `trained` before the batch is acknowledged, `acknowledged` after, `released`
for what an earlier life had on loan, `changed` for a group that is not what it must be. PLANT is `none`, or `twice`: a
fault for the referee to find.
"""

import asyncio
import sys
from pathlib import Path
from random import Random

from hermes_rl.api.client.trainer import TrainerClient
from hermes_rl.api.schemas import LeasedBatch
from tests.chaos.trajectory import ledger as ledgers
from tests.chaos.trajectory.board import MAKING, SENDING, Board, Doing, Phase
from tests.chaos.trajectory.ledger import Ledger
from tests.chaos.trajectory.lots import lot_of, make
from tests.chaos.trajectory.replicas import Event, ReplicaConnection

BATCH_SIZE = 32
LEASE_SECONDS = 30.0
WAIT = 0.5
PATIENCE = 120.0


class Consumer:
    """One life of the trainer over the ledger of all its lives."""

    def __init__(self, directory: Path, connection: ReplicaConnection, random: Random, pace: float, plant: str) -> None:
        self._connection, self._random, self._pace, self._plant = connection, random, pace, plant
        self._trainer = TrainerClient(connection, "consumer", patience=PATIENCE)
        self._doing = Doing(Phase.STARTING)
        connection.watcher = self._watch
        self._drain = directory.parent / "drain"
        self._past = ledgers.read(directory / "ledger")
        self._ledger = Ledger(directory / "ledger")
        self._board = Board(directory / "board")
        self._version = max((line["version"] for line in self._past if "version" in line), default=0)

    async def run(self) -> None:
        await self._resume()
        while True:
            draining = self._drain.exists()
            self._tell(Phase.LEASING)
            batch = await self._trainer.lease(wait=WAIT, seconds=LEASE_SECONDS)
            if batch is None and draining:
                # What is too little for a batch of the usual size.
                batch = await self._trainer.lease(wait=0, seconds=LEASE_SECONDS, batch_size=1)
                if batch is None:
                    return
            if batch is not None:
                async with self._trainer.held(batch, LEASE_SECONDS):
                    await self._train(batch)
                # Not inside: there is nothing to hold of a batch that is acknowledged, and `held` would say so.
                await self._acknowledge(batch.id)
                await self._next_version()

    async def _resume(self) -> None:
        """Acknowledge what the checkpoint holds, and give back all else that earlier lives had on loan."""
        self._tell(Phase.RESUMING)
        await self._trainer.register(BATCH_SIZE)
        acknowledged = {line["acknowledged"] for line in self._past if "acknowledged" in line}
        for line in self._past:
            if "trained" in line and line["trained"] not in acknowledged:
                await self._acknowledge(line["trained"])
        if loans := await self._trainer.on_loan():
            await self._trainer.release(*loans)
            self._ledger.write(released=loans)

    async def _train(self, batch: LeasedBatch) -> None:
        self._ledger.write(leased=batch.id)
        count = len(batch.groups)
        self._tell(Phase.READING, batch.id, 0, count)
        names, done = [group.id for group in batch.groups], 0
        async for data in self._trainer.groups(batch):
            done += 1
            self._tell(Phase.READING, batch.id, done, count)
            if data != await asyncio.to_thread(make, lot_of(names[done - 1])):
                self._ledger.write(changed=names[done - 1])
        self._tell(Phase.TRAINING, batch.id)
        await asyncio.sleep(self._random.uniform(0, self._pace))
        self._tell(Phase.RECORDING, batch.id)
        for _ in range(2 if self._plant == "twice" else 1):
            self._ledger.write(trained=batch.id, groups=names)

    async def _acknowledge(self, batch: int) -> None:
        self._tell(Phase.ACKNOWLEDGING, batch)
        await self._trainer.acknowledge(batch)
        self._ledger.write(acknowledged=batch)

    async def _next_version(self) -> None:
        """Remembered before it is said, so that no other life says it of other weights."""
        self._tell(Phase.SETTING_VERSION)
        self._version += 1
        self._ledger.write(version=self._version)
        await self._trainer.set_version(self._version)
        self._ledger.write(version_set=self._version)

    def _tell(self, phase: Phase, batch: int = -1, done: int = 0, total: int = 0) -> None:
        self._doing = Doing(phase, batch, done, total)
        self._board.tell(MAKING, phase, batch, done, total)
        if phase is Phase.READING and done:
            self._tell_wire()
        else:
            self._board.tell(SENDING, Phase.IDLE)

    def _watch(self, event: Event, path: str, _: int) -> None:
        if path.endswith("/extend"):
            return
        now = self._doing
        if event is Event.ASKED:
            self._board.tell(MAKING, now.phase, now.number, now.done, now.total)
            self._tell_wire()
        elif event is Event.FAILED:
            self._board.tell(MAKING, Phase.AWAY, now.number)
            self._board.tell(SENDING, Phase.IDLE)
        elif event is Event.ANSWERED and now.phase is not Phase.READING:
            self._board.tell(SENDING, Phase.IDLE)

    def _tell_wire(self) -> None:
        now = self._doing
        self._board.tell(SENDING, now.phase, now.number, now.done, now.total, self._connection.port)


async def consume(directory: Path, random: Random, pace: float, plant: str, urls: list[str]) -> None:
    async with ReplicaConnection(urls) as connection:
        await Consumer(directory, connection, random, pace, plant).run()


if __name__ == "__main__":
    place, seed, pace, plant, *urls = sys.argv[1:]
    asyncio.run(consume(Path(place), Random(seed), float(pace), plant, urls))
