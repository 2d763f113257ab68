"""A program that puts groups into a spool, one draw after the other, and says each once it was kept."""

import asyncio
import sys
from pathlib import Path

from hermes_rl.api.client.spool import Spool


async def fill(directory: Path, begin: int, size: int) -> None:
    async with Spool(directory) as spool:
        draw = begin
        while True:
            await spool.put(draw, draw.to_bytes(8, "big") * (size // 8))
            print(draw, flush=True)
            draw += 1


if __name__ == "__main__":
    asyncio.run(fill(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
