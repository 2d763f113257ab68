"""A load balancer before several APIs, as anybody's: each connection goes to the next one that takes it.

Always true: it reads nothing of what it carries. A connection whose API dies is broken, as a real one would be.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count

PIECE = 65_536


@asynccontextmanager
async def balanced(ports: Sequence[int], host: str) -> AsyncIterator[str]:
    """The address at which all of them are reached; `ports` are of this machine."""
    turns = count()
    carried: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        carried.add(task)
        try:
            await _carried(reader, writer, ports, host, next(turns))
        except asyncio.CancelledError:
            # Python 3.11 reports a cancelled connection as a fault of its own.
            pass
        finally:
            carried.discard(task)

    server = await asyncio.start_server(carry, host, 0)
    try:
        yield f"http://{host}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in carried:
            task.cancel()
        await asyncio.gather(*carried, return_exceptions=True)


async def _carried(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ports: Sequence[int], host: str, turn: int
) -> None:
    there = None
    for place in range(len(ports)):
        with suppress(OSError):
            there = await asyncio.open_connection(host, ports[(turn + place) % len(ports)])
            break
    if there is None:
        writer.close()
        return
    try:
        await asyncio.gather(_piped(reader, there[1]), _piped(there[0], writer))
    finally:
        for one in (there[1], writer):
            one.close()


async def _piped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()
    # Whichever end closes first, the other is told.
    writer.close()
