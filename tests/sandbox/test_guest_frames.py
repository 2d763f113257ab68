"""Bytes from a guest agent that are no frames end the connection with a reason; nothing waits for the rest."""

import asyncio

import pytest

from hermes_rl.core.errors import SandboxError
from hermes_rl.sandbox.guest_agent.client import GuestAgentClient
from hermes_rl.sandbox.protocol import Command


class Nowhere:
    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"o\0\0\0\1\xff\xff\xff\xff", "announced 4294967295 bytes at once; its connection is corrupt"),
        (b"x\0\0\0\1\0\0\0\1\0", "sent 1 bytes as b'x'; its connection is corrupt"),
        (b"w\0\0\0\1\0\0\0\5\0\0\0\0\0", "sent 5 bytes as b'w'; its connection is corrupt"),
    ],
)
async def test_a_corrupt_connection_fails_the_command_at_once(data: bytes, reason: str) -> None:
    client = GuestAgentClient()
    client.connect(Nowhere(), {})
    running = asyncio.ensure_future(client.run(Command("ls", timeout=60), home="/", ids=("", ""), env={}))
    await asyncio.sleep(0)
    client.feed(data)
    client.feed(b"x\0\0\0\1\0\0\0\10" + bytes(8))
    with pytest.raises(SandboxError, match=reason):
        await running
    assert not client.connected
