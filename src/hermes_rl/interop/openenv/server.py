"""An OpenEnv server as a program on this machine, on a free port, which ends with the environment that started it."""

import asyncio
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import aiohttp

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.process_guard import guard_argv

INHERITED = ("HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "TZ", "VIRTUAL_ENV")
POLL_SECONDS = 0.2
STDERR_LINES = 20
PORT = "{port}"


@asynccontextmanager
async def running_server(
    command: Sequence[str], variables: Mapping[str, str], start_timeout: float
) -> AsyncIterator[str]:
    """The URL of the server once it is healthy; ConfigError with the end of its output when it does not get there."""
    if not any(PORT in word for word in command):
        raise ConfigError(f"server_command has no {PORT}: write the port that the server is to use as {PORT}")
    port = _free_port()
    inherited = {name: value for name in INHERITED if (value := os.environ.get(name))}
    process = await asyncio.create_subprocess_exec(
        *guard_argv([word.replace(PORT, str(port)) for word in command]),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={"ENABLE_WEB_INTERFACE": "false", **inherited, **variables},
    )
    output: deque[str] = deque(maxlen=STDERR_LINES)
    reader = asyncio.create_task(_read(process, output))
    try:
        url = f"http://127.0.0.1:{port}"
        await _wait_until_healthy(url, process, start_timeout, output)
        yield url
    finally:
        # The guard ends the server and what it started when its standard input closes.
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()
        await reader


async def _wait_until_healthy(
    url: str, process: asyncio.subprocess.Process, timeout: float, output: Sequence[str]
) -> None:
    try:
        async with asyncio.timeout(timeout), aiohttp.ClientSession() as http:
            while process.returncode is None:
                with suppress(aiohttp.ClientError):
                    async with http.get(f"{url}/health") as answer:
                        if answer.ok:
                            return
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        pass
    how = f"is not healthy after {timeout:g} s" if process.returncode is None else f"ended ({process.returncode})"
    raise ConfigError(f"the OpenEnv server {how}: " + "\n".join(output))


async def _read(process: asyncio.subprocess.Process, output: deque[str]) -> None:
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    while chunk := await process.stdout.read(1 << 16):
        output.extend(chunk.decode(errors="replace").splitlines())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
