"""Isolation that a backend claims: files, processes, users, network, root directory."""

import asyncio
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from hermes_rl.core.errors import ConfigError, SandboxError
from hermes_rl.sandbox.conformance.check import (
    LONG_TIMEOUT,
    CheckContext,
    CheckGroup,
    NotClaimedError,
    count_processes,
    require,
    require_equal,
    require_output,
    run,
    sleep_command,
)
from hermes_rl.sandbox.port_forward import forward_port
from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.sandbox.spec import AGENT, ROOT

GROUP = CheckGroup("isolation and network")

_INTERNET_HOST = "example.com"


@GROUP.on_backend(claims="isolates_files")
async def host_files_are_hidden(context: CheckContext) -> None:
    """Files of the host, in its temporary directories and our home, cannot be read inside."""
    sandbox = await context.start()
    with canaries() as (paths, secret):
        for path in paths:
            result = await run(sandbox, 'cat "$CANARY"', env={"CANARY": str(path)})
            require(secret not in result.stdout, f"{path} of the host was read inside")


@GROUP.on_backend(claims="isolates_files")
async def host_files_are_not_writable(context: CheckContext) -> None:
    """Writing to the path of a host file does not change the file on the host."""
    sandbox = await context.start()
    with canaries() as (paths, secret):
        for path in paths:
            await run(sandbox, 'mkdir -p "${CANARY%/*}"; echo changed > "$CANARY"', env={"CANARY": str(path)})
            require(path.read_bytes() == secret, f"{path} of the host was changed from inside")


@GROUP.on_backend(claims="isolates_files")
async def sandbox_files_are_separate(context: CheckContext) -> None:
    """Two sandboxes do not see each other's files, neither in the workspace nor in /tmp."""
    one, other = await context.start(), await context.start()
    for directory in (one.workspace, "/tmp"):  # noqa: S108 - inside
        await one.write(f"{directory}/private-file", b"private")
        result = await run(other, f"cat {directory}/private-file; find / -xdev -name private-file 2>/dev/null")
        require_equal(f"what the other sandbox sees of a file in {directory}", result.stdout, b"")


@GROUP.on_backend(claims="isolates_files")
async def system_files_are_not_writable(context: CheckContext) -> None:
    """The agent cannot change system files."""
    sandbox = await context.start()
    for path in ("/usr/bin/bash", "/usr/hermes-rl-file", "/etc/passwd", "/hermes-rl-file"):
        result = await run(sandbox, f"echo x >> {path}")
        require(result.exit_code != 0, f"{path} was written by the user {AGENT}")


@GROUP.on_backend(claims="isolates_processes")
async def host_processes_are_hidden(context: CheckContext) -> None:
    """A process of the host is not visible to a command."""
    sandbox = await context.start()
    command, marker = sleep_command()
    process = await asyncio.create_subprocess_exec(*command.split())
    try:
        require_equal("the number of visible host processes", await count_processes(sandbox, marker), 0)
    finally:
        process.kill()
        await process.wait()


@GROUP.on_backend(claims="isolates_processes")
async def sandbox_processes_are_separate(context: CheckContext) -> None:
    """Two sandboxes do not see each other's processes, and killing those of one spares the other's."""
    one, other = await context.start(), await context.start()
    command, marker = sleep_command()
    await run(one, f"{command} &")
    require_equal("the number of visible processes of the other sandbox", await count_processes(other, marker), 0)
    await run(other, "kill -KILL -1")
    await other.end_processes()
    require_equal("the number of live processes of the first", await count_processes(one, marker), 1)


@GROUP.on_backend(claims="network_off")
async def network_off_is_enforced(context: CheckContext) -> None:
    """With network=False neither a listener on the host nor an internet name can be reached."""
    await _require_no_network(await context.start(context.spec(network=False)))


@GROUP.on_backend(claims="network_off")
async def network_is_off_by_default(context: CheckContext) -> None:
    """Without a network setting in the spec there is no network."""
    await _require_no_network(await context.start())


@GROUP.on_backend(claims="network_on")
async def network_on_works(context: CheckContext) -> None:
    """With network=True the host, an internet address, or at least the gateway answers."""
    sandbox = await context.start(context.spec(network=True))
    async with _listener() as (port, peers):
        await _try_to_connect(sandbox, port)
        if peers:
            return
    for address in [*_gateways((await run(sandbox, "cat /proc/net/route")).stdout.decode()), _INTERNET_HOST]:
        result = await run(sandbox, f"timeout 5 bash -c ': < /dev/tcp/{address}/80'")
        # A refusal also came over the network.
        if result.exit_code == 0 or b"refused" in result.stderr:
            return
    require(False, f"neither the host nor {_INTERNET_HOST} nor a gateway could be reached")


@GROUP.on_backend(claims="root_user")
async def root_and_agent_differ(context: CheckContext) -> None:
    """The user `root` has uid 0, the default user another."""
    sandbox = await context.start()
    await require_output(sandbox, "id -u", b"0\n", user=ROOT)
    for user in (None, AGENT):
        require((await run(sandbox, "id -u", user=user)).stdout != b"0\n", "the default user is root")


@GROUP.on_backend(claims="root_user")
async def root_can_be_default_user(context: CheckContext) -> None:
    """With user='root' in the spec, commands run as root unless they name the agent."""
    sandbox = await context.start(context.spec(user=ROOT))
    await require_output(sandbox, "id -u", b"0\n")
    require((await run(sandbox, "id -u", user=AGENT)).stdout != b"0\n", "the user agent is root")


@GROUP.on_backend(claims="root_user")
async def agent_cannot_read_root_files(context: CheckContext) -> None:
    """The agent can neither read nor change a private file of root."""
    sandbox = await context.start()
    path = f"{sandbox.scratch}/private"
    await run(sandbox, f"umask 077; echo private > {path}", user=ROOT)
    require_equal("what the agent reads", (await run(sandbox, f"cat {path}; echo x >> {path}")).stdout, b"")
    await require_output(sandbox, f"cat {path}", b"private\n", user=ROOT)


@GROUP.on_backend(claims="writable_root")
async def writable_root_is_writable(context: CheckContext) -> None:
    """With writable_root=True system files can be changed, by root where the backend has root."""
    sandbox = await context.start(context.spec(writable_root=True))
    user = ROOT if context.capabilities.root_user else AGENT
    await require_output(
        sandbox, "echo new > /usr/local/hermes-rl-file && cat /usr/local/hermes-rl-file", b"new\n", user=user
    )


@GROUP.on_backend(claims="folders")
async def folders_are_mounted_read_only(context: CheckContext) -> None:
    """A folder of this machine is mounted at its path and cannot be changed from inside."""
    with _public_folder() as folder:
        sandbox = await context.start(context.spec(folders={"/hermes-rl-folder": folder}))
        await require_output(sandbox, "cat /hermes-rl-folder/file", b"ours\n")
        for user in (AGENT, ROOT) if context.capabilities.root_user else (AGENT,):
            await run(sandbox, "echo theirs > /hermes-rl-folder/file; touch /hermes-rl-folder/new", user=user)
        require_equal("the folder", _contents(folder), {"file": "ours\n"})


@GROUP.on_sandbox
async def port_forward_reaches_one_endpoint(sandbox: Sandbox) -> None:
    """A forwarded port on the sandbox's loopback reaches our endpoint, until forwarding ends."""
    echoing: set[asyncio.Task[None]] = set()

    async def echo(end: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=end)
        writer.write(b"got " + await reader.readline())
        writer.close()

    async def connect() -> socket.socket:
        ours, theirs = socket.socketpair()
        echoing.add(asyncio.create_task(echo(theirs)))
        return ours

    async with forward_port(sandbox, connect, lifetime=LONG_TIMEOUT) as forward:
        talk = f"exec 3<>/dev/tcp/127.0.0.1/{forward.port}; echo hello >&3; cat <&3"
        await require_output(sandbox, talk, b"got hello\n")
    require((await run(sandbox, talk)).exit_code != 0, "the port still answers after forwarding ended")
    await asyncio.gather(*echoing)


@GROUP.on_backend(claims="images")
async def image_is_used(context: CheckContext) -> None:
    """A sandbox starts from the given image (with --image)."""
    if context.image is None:
        raise NotClaimedError("no image given: add --image IMAGE")
    try:
        sandbox = await context.start(context.spec(image=context.image))
    except (SandboxError, ConfigError) as error:
        require(False, f"no sandbox started from {context.image}: {error}")
    else:
        await require_output(sandbox, "echo well", b"well\n")


@contextmanager
def canaries() -> Iterator[tuple[list[Path], bytes]]:
    """World-readable files on the host, and their content."""
    secret = secrets.token_hex(16).encode()
    with ExitStack() as opened:
        paths = []
        for directory in {Path(tempfile.gettempdir()), Path("/var/tmp"), Path.home()}:  # noqa: S108 - the host's own
            if os.access(directory, os.W_OK):
                file = opened.enter_context(tempfile.NamedTemporaryFile(prefix="hermes-rl-canary-", dir=directory))
                file.write(secret)
                file.flush()
                Path(file.name).chmod(0o644)
                paths.append(Path(file.name))
        yield paths, secret


async def _require_no_network(sandbox: Sandbox) -> None:
    async with _listener() as (port, peers):
        await _try_to_connect(sandbox, port)
        require(not peers, f"a listener on the host was reached from inside at {', '.join(_addresses())}, port {port}")
    result = await run(sandbox, f"timeout 5 getent hosts {_INTERNET_HOST}")
    require(result.exit_code != 0, f"the name {_INTERNET_HOST} was resolved from inside: {result.stdout!r}")


@asynccontextmanager
async def _listener() -> AsyncIterator[tuple[int, list[str]]]:
    """A listener on all addresses of this machine: its port, and the peers that connected."""
    peers: list[str] = []

    def on_connect(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(str(writer.get_extra_info("peername")))
        writer.close()

    server = await asyncio.start_server(on_connect, "0.0.0.0", 0)  # noqa: S104 - the sandbox may know us by any address
    async with server:
        yield server.sockets[0].getsockname()[1], peers


async def _try_to_connect(sandbox: Sandbox, port: int) -> None:
    for address in _addresses():
        await run(sandbox, f"timeout 3 bash -c ': < /dev/tcp/{address}/{port}'")
    await asyncio.sleep(0.1)


def _addresses() -> list[str]:
    """The addresses of this host: the loopback, and the source address of internet traffic."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # On a datagram socket this only selects a route; nothing is sent.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ["127.0.0.1"]
        return ["127.0.0.1", probe.getsockname()[0]]


def _gateways(routes: str) -> list[str]:
    """Parse /proc/net/route, where addresses are hex numbers in native byte order."""
    rows = [line.split() for line in routes.splitlines()[1:]]
    gateways = {row[2] for row in rows if len(row) > 2 and row[2] != "00000000"}
    return [socket.inet_ntoa(int(gateway, 16).to_bytes(4, sys.byteorder)) for gateway in gateways]


@contextmanager
def _public_folder() -> Iterator[Path]:
    """A folder of this machine with one file, readable by all users."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        folder.chmod(0o755)
        (folder / "file").write_text("ours\n")
        yield folder


def _contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}
