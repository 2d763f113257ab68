"""A caller at full speed, without kills: posts groups of 16×2048 tokens, or leases, reads and acknowledges them.

python -m tests.chaos.trajectory.load post NAME COUNT URL, or take NAME COUNT URL: says `ready`, begins when a line
comes in, and says the moments of its first request and its last answer, and how many groups it were.
"""

import asyncio
import json
import sys
import time

from hermes_rl.api.client.connection import ApiConnection
from hermes_rl.api.client.native_destination import NativeDestination
from hermes_rl.api.client.trainer import TrainerClient
from hermes_rl.api.schemas import EnvironmentRegistration
from tests.chaos.trajectory.lots import Lot, make

TOGETHER = 4
# In rollouts: eight groups.
BATCH_SIZE = 128


async def post(connection: ApiConnection, name: str, count: int) -> tuple[float, int]:
    destination = NativeDestination(connection, EnvironmentRegistration(name=name))
    await destination.register()
    waiting = [make(Lot(name, number), "middle") for number in range(count)]
    began = await _told_to_begin()

    async def post_some() -> None:
        while waiting:
            await destination.post(waiting.pop())

    await asyncio.gather(*(post_some() for _ in range(TOGETHER)))
    return began, count


async def take(connection: ApiConnection, name: str) -> tuple[float, int]:
    trainer = TrainerClient(connection, name)
    await trainer.register(BATCH_SIZE)
    began, count = await _told_to_begin(), 0
    while batch := await trainer.lease(wait=0):
        async for _ in trainer.groups(batch):
            count += 1
        await trainer.acknowledge(batch)
    return began, count


async def _told_to_begin() -> float:
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    return time.time()


async def main(what: str, name: str, count: int, url: str) -> None:
    async with ApiConnection(url) as connection:
        began, done = await (post(connection, name, count) if what == "post" else take(connection, name))
        print(json.dumps({"began": began, "ended": time.time(), "groups": done}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
