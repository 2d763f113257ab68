"""A port inside the sandbox leads to one place of ours, whatever runs inside does with it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.errors import SandboxError
from hermes_rl.sandbox.backends.local import LocalBackend
from hermes_rl.sandbox.backends.registry import make_backend
from hermes_rl.sandbox.ledger import SandboxLedger
from hermes_rl.sandbox.port_forward import Connect, forward_port
from hermes_rl.sandbox.protocol import Sandbox
from tests.sandbox.backends.test_ssh import settings
from tests.support.sandbox_parts import IMAGE

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SERVERS = {
    "docker": "docker_daemon",
    "podman": "podman_service",
    "ssh": "ssh_server",
    "modal": "modal_cloud",
    "daytona": "daytona_cloud",
}
TIMEOUT = 60


@asynccontextmanager
async def served(serve: Serve) -> AsyncIterator[Connect]:
    """Makes connections whose other ends are served."""
    serving: list[asyncio.Task[None]] = []

    async def serve_one(end: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=end)
        try:
            await serve(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def connect() -> socket.socket:
        ours, theirs = socket.socketpair()
        serving.append(asyncio.create_task(serve_one(theirs)))
        return ours

    yield connect
    async with asyncio.timeout(TIMEOUT):
        await asyncio.gather(*serving, return_exceptions=True)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(64 * 1024):
        writer.write(data)
        await writer.drain()
    writer.close()


async def run(sandbox: Sandbox, port: int, program: str) -> str:
    """What a few lines of Python print in the sandbox; `line` is a connection, `whole` reads one to its end."""
    begun = f"""
import os, socket, sys, threading, time
def connected(): return socket.create_connection(("127.0.0.1", {port}), timeout=30)
def whole(line):
    parts = []
    while data := line.recv(1 << 20): parts.append(data)
    return b"".join(parts)
line = connected()
"""
    result = await sandbox.exec("exec python3 -", stdin=(begun + program).encode(), timeout=TIMEOUT, merge_stderr=True)
    return result.stdout.decode()


async def test_bytes_go_both_ways(sandbox: Sandbox) -> None:
    async with served(echo) as connect, forward_port(sandbox, connect, lifetime=TIMEOUT) as opened:
        assert await run(sandbox, opened.port, "line.sendall(b'hello'); print(line.recv(5))") == "b'hello'\n"


@pytest.fixture(params=["docker", "podman", "ssh", "modal", "daytona"])
def elsewhere(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """A backend of another project's server, and its settings."""
    name: str = request.param
    server = request.getfixturevalue(SERVERS[name])
    if name == "ssh":
        return name, settings(server)
    return name, {"url": server.url, "image": IMAGE} if name in ("docker", "podman") else {}


@pytest.mark.parts
async def test_every_backend_has_it(elsewhere: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    backend = make_backend(*elsewhere, SandboxLedger(tmp_path / "ledger"))
    async with served(echo) as connect, await backend.start() as sandbox:
        async with forward_port(sandbox, connect, lifetime=TIMEOUT) as opened:
            talk = f"exec 3<>/dev/tcp/127.0.0.1/{opened.port}; echo hello >&3; head -n 1 <&3"
            assert (await sandbox.exec(talk, timeout=TIMEOUT)).stdout == b"hello\n"
        await sandbox.close()
        await backend.close()


async def test_much_goes_through_unchanged(jail: Sandbox) -> None:
    program = """
sent = os.urandom(1 << 20) * 16
threading.Thread(target=line.sendall, args=[sent]).start()
got = b""
while len(got) < len(sent): got += line.recv(1 << 20)
print(got == sent)
"""
    async with served(echo) as connect, forward_port(jail, connect, lifetime=TIMEOUT) as opened:
        assert await run(jail, opened.port, program) == "True\n"


async def test_many_connections_at_once_are_kept_apart(jail: Sandbox) -> None:
    program = """
lines = [connected() for _ in range(250)]
for number, one in enumerate(lines): one.sendall(b"%06d" % number)
print([one.recv(6) for one in lines] == [b"%06d" % number for number in range(250)])
"""
    async with served(echo) as connect, forward_port(jail, connect, lifetime=TIMEOUT) as opened:
        assert await run(jail, opened.port, program) == "True\n"


async def test_our_side_hears_of_a_caller_that_hangs_up(jail: Sandbox) -> None:
    ended = asyncio.Event()

    async def waits(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        ended.set()

    async with served(waits) as connect, forward_port(jail, connect, lifetime=TIMEOUT) as opened:
        await run(jail, opened.port, "line.sendall(b'hello'); time.sleep(0.1); line.close()")
        await asyncio.wait_for(ended.wait(), TIMEOUT)


async def test_a_caller_gets_the_last_words_of_our_side_though_it_still_sends(jail: Sandbox) -> None:
    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"too much")
        writer.close()

    program = """
try: line.sendall(b"x" * 5_000_000)
except OSError: pass
print(whole(line))
"""
    async with served(refuses) as connect, forward_port(jail, connect, lifetime=TIMEOUT) as opened:
        assert await run(jail, opened.port, program) == "b'too much'\n"


async def test_an_answer_that_comes_before_all_was_sent_is_not_lost(jail: Sandbox) -> None:
    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        writer.write(b"no")
        writer.close()

    program = """
def one():
    line = connected()
    line.sendall(b"head")
    time.sleep(0.001)
    try: line.sendall(b"body" * 10)
    except OSError: pass
    return whole(line)
print({one() for _ in range(300)})
"""
    async with served(refuses) as connect, forward_port(jail, connect, lifetime=TIMEOUT) as opened:
        assert await run(jail, opened.port, program) == "{b'no'}\n"


async def test_one_who_is_not_heard_out_does_not_fill_our_memory(jail: Sandbox) -> None:
    deaf = asyncio.Event()
    taken = 0

    async def hears_little(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        taken = len(await reader.read(100))
        await deaf.wait()
        writer.close()

    program = """
line.settimeout(1)
sent = 0
try:
    while sent < 64 << 20: sent += line.send(b"x" * (1 << 20))
except TimeoutError: pass
print(sent < 16 << 20)
"""
    async with served(hears_little) as connect, forward_port(jail, connect, lifetime=TIMEOUT) as opened:
        assert await run(jail, opened.port, program) == "True\n"
        deaf.set()
    assert taken


async def nowhere() -> socket.socket:
    raise ConnectionRefusedError


async def test_a_place_that_cannot_be_reached_is_told_to_both_sides(jail: Sandbox) -> None:
    async with forward_port(jail, nowhere, lifetime=TIMEOUT) as opened:
        assert await run(jail, opened.port, "print(whole(line))") == "b''\n"
        assert isinstance(opened.unreachable, ConnectionRefusedError)


async def test_nothing_listens_after_the_end(jail: Sandbox) -> None:
    async with served(echo) as connect, forward_port(jail, connect, lifetime=TIMEOUT) as opened:
        pass
    assert "ConnectionRefusedError" in await run(jail, opened.port, "")


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param('b"?" + bytes(8)', id="of no kind"),
        pytest.param('b"D" + b"\\xff" * 8', id="far too long"),
        pytest.param("os.urandom(4096)", id="noise"),
        pytest.param('b"D\\0\\0\\0\\1\\0\\0\\xff\\0" + bytes(0xff00) * 1000', id="more than was asked for"),
    ],
)
async def test_what_is_forged_ends_the_forgers_outlet_alone(jail: Sandbox, frame: str) -> None:
    forge = f"""
for pid in filter(str.isdigit, os.listdir("/proc")):
    if "end of a port forward" in open(f"/proc/{{pid}}/cmdline").read() and int(pid) != os.getpid():
        with open(f"/proc/{{pid}}/fd/1", "wb") as stream: stream.write({frame})
time.sleep(0.5)
line.sendall(b"still there?")
print(whole(line))
"""
    async with served(echo) as connect, forward_port(jail, connect, lifetime=TIMEOUT) as opened:
        assert "still there?" not in await run(jail, opened.port, forge)
        assert (await jail.exec("echo well", timeout=TIMEOUT)).stdout == b"well\n"


async def test_a_sandbox_that_cannot_have_one_says_why() -> None:
    backend = LocalBackend()
    try:
        async with await backend.start() as sandbox:
            await sandbox.close()
            with pytest.raises(SandboxError):
                async with forward_port(sandbox, nowhere, lifetime=TIMEOUT):
                    pass
    finally:
        await backend.close()
