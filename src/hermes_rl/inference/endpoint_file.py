"""Keeps the endpoints of a run in step with a file that has one base_url per line.

A file that cannot be read, or that has no address, changes nothing.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from yarl import URL

from hermes_rl.core.errors import ConfigError, EndpointError
from hermes_rl.inference.readiness import READY_PAUSE
from hermes_rl.inference.server_manager import ServerManager

POLL_SECONDS = 2.0


@asynccontextmanager
async def follow_endpoint_file(server: ServerManager, path: Path, every: float = POLL_SECONDS) -> AsyncIterator[None]:
    """Use the endpoints that the file lists while the block runs; waits until one of them answers."""
    first, timeout = read_addresses(path), server.configs[0].ready_timeout
    if not first:
        raise ConfigError(f"--env.engines_file {path} lists no engine; write one base_url per line")
    try:
        async with asyncio.timeout(timeout):
            while True:
                if await server.endpoints.follow(first):
                    break
                await asyncio.sleep(READY_PAUSE)
    except TimeoutError:
        message = f"none of {', '.join(first)} answered in {timeout:g} s; start one, or list others in {path}"
        raise EndpointError("not_ready", message) from None
    task = asyncio.create_task(_follow(server, path, every))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _follow(server: ServerManager, path: Path, every: float) -> None:
    while True:
        await asyncio.sleep(every)
        # Even when the file has not changed: an engine in it may have come up since.
        if listed := await asyncio.to_thread(read_addresses, path):
            await server.endpoints.follow(listed)


def read_addresses(path: Path) -> list[str]:
    """The addresses in order, without comments and duplicates; empty when the file cannot be read."""
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
