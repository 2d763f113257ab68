"""Roster: the engines that a file names, a base_url on each line, followed while a run lasts.

Always true: a file that cannot be read, or names none, changes nothing.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from yarl import URL

from hermes_rl.errors import ConfigError, EndpointError
from hermes_rl.inference.readiness import READY_PAUSE
from hermes_rl.inference.server_manager import ServerManager

LOOK_EVERY = 2.0


@asynccontextmanager
async def following(server: ServerManager, path: Path, every: float = LOOK_EVERY) -> AsyncIterator[None]:
    """Have the server's endpoints be those of the file, from now on; waits until one of them is there."""
    first, timeout = addresses(path), server.configs[0].ready_timeout
    if not first:
        raise ConfigError(f"--env.engines_file {path} names no engine; write the base_url of one on each line")
    try:
        async with asyncio.timeout(timeout):
            while True:
                if await server.endpoints.follow(first):
                    break
                await asyncio.sleep(READY_PAUSE)
    except TimeoutError:
        told = f"none of {', '.join(first)} answered in {timeout:g} s; start one, or name others in {path}"
        raise EndpointError("not_ready", told) from None
    task = asyncio.create_task(_follow(server, path, every))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _follow(server: ServerManager, path: Path, every: float) -> None:
    while True:
        await asyncio.sleep(every)
        # Also when the file is as before: one of them may have come up since.
        if named := await asyncio.to_thread(addresses, path):
            await server.endpoints.follow(named)


def addresses(path: Path) -> list[str]:
    """Without comments and repetitions, in their order."""
    try:
        text = path.read_text()
    except (OSError, ValueError):
        return []
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return list(dict.fromkeys(filter(_is_address, lines)))


def _is_address(line: str) -> bool:
    try:
        url = URL(line)
        return url.scheme in ("http", "https") and bool(url.host and url.port)
    except ValueError:
        return False
