"""Programs of the real atroposlib, each a process of its own in a folder of its own, ended by its number."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
ADAPTER = ("-m", "hermes_rl.environment.atropos_adapter")
# wandb is never set up there, and nothing is written into the checkout.
SETTINGS = {
    "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "HF_HUB_OFFLINE": "1",
    "NETRC": os.devnull,
}


async def run(python: Path, *arguments: str, folder: Path, seconds: float = 300.0) -> tuple[int, str]:
    """A program to its end: its exit status and all it said."""
    async with running(python, *arguments, folder=folder) as process:
        assert process.stdout is not None
        async with asyncio.timeout(seconds):
            said = await process.stdout.read()
            return await process.wait(), said.decode(errors="replace")


@contextlib.asynccontextmanager
async def running(
    python: Path, *arguments: str, folder: Path, log: Path | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program while the block runs; what it says goes to the log, if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as files:
        process = await asyncio.create_subprocess_exec(
            python,
            *arguments,
            cwd=folder,
            env={**os.environ, **SETTINGS},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=files.enter_context(log.open("wb")) if log else asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(15):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
