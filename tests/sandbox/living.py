"""Which processes live, seen from the host."""

import asyncio
import uuid
from pathlib import Path

from hermes_rl.sandbox.process_tree import all_pids
from hermes_rl.sandbox.protocol import Sandbox


def nap() -> str:
    """A command that sleeps for minutes and can be told from every other one on this machine."""
    return f"sleep 600.{uuid.uuid4().int % 10**12:012d}"


async def begun(sandbox: Sandbox) -> None:
    """Wait for a command that begins with `touch begun`; its processes may not be seen from the host."""
    async with asyncio.timeout(60):
        while (await sandbox.exec("test -e begun", timeout=30)).exit_code != 0:
            await asyncio.sleep(0.02)


def arguments(pid: int) -> bytes:
    """The arguments of a process, each ended by a NUL; empty for one that is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def living(command: str) -> list[int]:
    """The processes whose arguments are exactly these words."""
    wanted = b"".join(word.encode() + b"\0" for word in command.split())
    return [pid for pid in all_pids() if arguments(pid) == wanted]
