"""A program that delivers groups to an API, one draw after the other, and says each once it was taken over."""

import asyncio
import sys
from pathlib import Path

from hermes_rl.api.client.connection import ApiConnection
from hermes_rl.api.client.delivery import Delivery
from hermes_rl.api.client.native_destination import NativeDestination
from hermes_rl.api.client.spool import Spool
from hermes_rl.api.schemas import EnvironmentRegistration
from tests.store.database.making import make_group


async def deliver(url: str, directory: Path, begin: int) -> None:
    async with ApiConnection(url) as connection, Spool(directory) as spool:
        destination = NativeDestination(connection, EnvironmentRegistration(name="e"))
        await destination.register()
        async with Delivery(destination, spool) as delivery:
            draw = begin
            while True:
                await delivery.put(make_group(draw=draw, id=f"draw {draw}"), draw)
                print(draw, flush=True)
                draw += 1


if __name__ == "__main__":
    asyncio.run(deliver(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
