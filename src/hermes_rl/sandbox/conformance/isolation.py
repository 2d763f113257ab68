"""What a backend claims to keep apart: files, processes, users, network, root directory. Each is really tried."""

import asyncio
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from hermes_rl.errors import ConfigError, SandboxError
from hermes_rl.sandbox.conformance.check import (
    PLENTY,
    Group,
    NotClaimedError,
    Trial,
    living,
    must,
    nap,
    run,
    same,
    says,
)
from hermes_rl.sandbox.outlet import outlet
from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.sandbox.spec import AGENT, ROOT

GROUP = Group("isolation and network")

_OUTSIDE = "example.com"


@GROUP.on_backend(claims="isolates_files")
async def host_files_are_not_seen(trial: Trial) -> None:
    """Files of the host, in its temporary directories and our home, cannot be read inside."""
    sandbox = await trial.start()
    with canaries() as (paths, secret):
        for path in paths:
            result = await run(sandbox, 'cat "$CANARY"', env={"CANARY": str(path)})
            must(secret not in result.stdout, f"{path} of the host was read inside")


@GROUP.on_backend(claims="isolates_files")
async def host_files_are_not_written(trial: Trial) -> None:
    """What a command writes over the path of a host's file does not reach the host."""
    sandbox = await trial.start()
    with canaries() as (paths, secret):
        for path in paths:
            await run(sandbox, 'mkdir -p "${CANARY%/*}"; echo changed > "$CANARY"', env={"CANARY": str(path)})
            must(_content(path) == secret, f"{path} of the host was changed from inside")


@GROUP.on_backend(claims="isolates_files")
async def sandboxes_files_are_apart(trial: Trial) -> None:
    """Two sandboxes do not see each other's files, neither in the workspace nor in /tmp."""
    one, other = await trial.start(), await trial.start()
    for place in (one.workspace, "/tmp"):  # noqa: S108 - inside
        await one.write(f"{place}/private-file", b"private")
        result = await run(other, f"cat {place}/private-file; find / -xdev -name private-file 2>/dev/null")
        same(f"what the other sees of a file in {place}", result.stdout, b"")


@GROUP.on_backend(claims="isolates_files")
async def system_is_not_writable(trial: Trial) -> None:
    """The agent cannot change the system's files."""
    sandbox = await trial.start()
    for place in ("/usr/bin/bash", "/usr/hermes-rl-file", "/etc/passwd", "/hermes-rl-file"):
        result = await run(sandbox, f"echo x >> {place}")
        must(result.exit_code != 0, f"{place} was written by the user {AGENT}")


@GROUP.on_backend(claims="isolates_processes")
async def host_processes_are_not_seen(trial: Trial) -> None:
    """A process of the host is not among those that a command sees."""
    sandbox = await trial.start()
    command, mark = nap()
    process = await asyncio.create_subprocess_exec(*command.split())
    try:
        same("how many processes with its arguments are seen", await living(sandbox, mark), 0)
    finally:
        process.kill()
        await process.wait()


@GROUP.on_backend(claims="isolates_processes")
async def sandboxes_processes_are_apart(trial: Trial) -> None:
    """Two sandboxes do not see each other's processes, and ending those of one spares the other's."""
    one, other = await trial.start(), await trial.start()
    command, mark = nap()
    await run(one, f"{command} &")
    same("how many of the other's processes are seen", await living(other, mark), 0)
    await run(other, "kill -KILL -1")
    await other.end_processes()
    same("the living processes of the first", await living(one, mark), 1)


@GROUP.on_backend(claims="network_off")
async def network_is_off_when_asked(trial: Trial) -> None:
    """With network=False neither a listener of the host nor a name of the internet can be reached."""
    await _is_cut_off(await trial.start(trial.spec(network=False)))


@GROUP.on_backend(claims="network_off")
async def network_is_off_unless_asked(trial: Trial) -> None:
    """A spec that does not mention the network has none."""
    await _is_cut_off(await trial.start())


@GROUP.on_backend(claims="network_on")
async def network_is_on_when_asked(trial: Trial) -> None:
    """With network=True the host, an address of the internet, or at least its own gateway answers."""
    sandbox = await trial.start(trial.spec(network=True))
    async with _listener() as (port, seen):
        await _knock(sandbox, port)
        if seen:
            return
    for address in [*_gateways((await run(sandbox, "cat /proc/net/route")).stdout.decode()), _OUTSIDE]:
        result = await run(sandbox, f"timeout 5 bash -c ': < /dev/tcp/{address}/80'")
        # A refusal too has come over the network.
        if result.exit_code == 0 or b"refused" in result.stderr:
            return
    must(False, f"neither the host nor {_OUTSIDE} nor a gateway could be reached")


@GROUP.on_backend(claims="root_user")
async def root_and_agent_differ(trial: Trial) -> None:
    """The user `root` has the id 0, and the default user another."""
    sandbox = await trial.start()
    await says(sandbox, "id -u", b"0\n", user=ROOT)
    for user in (None, AGENT):
        must((await run(sandbox, "id -u", user=user)).stdout != b"0\n", "the default user is root")


@GROUP.on_backend(claims="root_user")
async def root_can_be_the_default(trial: Trial) -> None:
    """With user='root' in the spec commands run as root unless they name the agent."""
    sandbox = await trial.start(trial.spec(user=ROOT))
    await says(sandbox, "id -u", b"0\n")
    must((await run(sandbox, "id -u", user=AGENT)).stdout != b"0\n", "the user agent is root")


@GROUP.on_backend(claims="root_user")
async def agent_cannot_read_roots_files(trial: Trial) -> None:
    """A file that root keeps to itself cannot be read or changed by the agent."""
    sandbox = await trial.start()
    place = f"{sandbox.scratch}/private"
    await run(sandbox, f"umask 077; echo private > {place}", user=ROOT)
    same("what the agent reads", (await run(sandbox, f"cat {place}; echo x >> {place}")).stdout, b"")
    await says(sandbox, f"cat {place}", b"private\n", user=ROOT)


@GROUP.on_backend(claims="writable_root")
async def root_directory_is_writable_when_asked(trial: Trial) -> None:
    """With writable_root=True the system's files can be changed, by root where there is one."""
    sandbox = await trial.start(trial.spec(writable_root=True))
    user = ROOT if trial.can.root_user else AGENT
    await says(sandbox, "echo new > /usr/local/hermes-rl-file && cat /usr/local/hermes-rl-file", b"new\n", user=user)


@GROUP.on_backend(claims="folders")
async def folders_are_seen_and_not_written(trial: Trial) -> None:
    """A folder of this machine is seen at its path, and nobody inside can change it."""
    with _folder_for_all() as folder:
        sandbox = await trial.start(trial.spec(folders={"/hermes-rl-folder": folder}))
        await says(sandbox, "cat /hermes-rl-folder/file", b"ours\n")
        for user in (AGENT, ROOT) if trial.can.root_user else (AGENT,):
            await run(sandbox, "echo theirs > /hermes-rl-folder/file; touch /hermes-rl-folder/new", user=user)
        same("the folder", _contents(folder), {"file": "ours\n"})


@GROUP.on_sandbox
async def outlet_is_one_socket(sandbox: Sandbox) -> None:
    """A port on the sandbox's own loopback leads to one place of ours, while its block lasts and no longer."""
    echoing: set[asyncio.Task[None]] = set()

    async def echo(end: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=end)
        writer.write(b"heard " + await reader.readline())
        writer.close()

    async def connect() -> socket.socket:
        ours, theirs = socket.socketpair()
        echoing.add(asyncio.create_task(echo(theirs)))
        return ours

    async with outlet(sandbox, connect, lifetime=PLENTY) as opened:
        talk = f"exec 3<>/dev/tcp/127.0.0.1/{opened.port}; echo hello >&3; cat <&3"
        await says(sandbox, talk, b"heard hello\n")
    must((await run(sandbox, talk)).exit_code != 0, "the port still answers after the end")
    await asyncio.gather(*echoing)


@GROUP.on_backend(claims="images")
async def image_is_used(trial: Trial) -> None:
    """A sandbox starts from the image it is given (with --image)."""
    if trial.image is None:
        raise NotClaimedError("no image was given to try: add --image IMAGE")
    try:
        sandbox = await trial.start(trial.spec(image=trial.image))
    except (SandboxError, ConfigError) as error:
        must(False, f"no sandbox started from {trial.image}: {error}")
    else:
        await says(sandbox, "echo well", b"well\n")


@contextmanager
def canaries() -> Iterator[tuple[list[Path], bytes]]:
    """Files of the host that everybody may read, and what they hold."""
    secret = secrets.token_hex(16).encode()
    with ExitStack() as opened:
        paths = []
        for place in {Path(tempfile.gettempdir()), Path("/var/tmp"), Path.home()}:  # noqa: S108 - the host's own
            if os.access(place, os.W_OK):
                file = opened.enter_context(tempfile.NamedTemporaryFile(prefix="hermes-rl-canary-", dir=place))
                file.write(secret)
                file.flush()
                Path(file.name).chmod(0o644)
                paths.append(Path(file.name))
        yield paths, secret


async def _is_cut_off(sandbox: Sandbox) -> None:
    async with _listener() as (port, seen):
        await _knock(sandbox, port)
        must(not seen, f"a listener of the host was reached from inside at {', '.join(_addresses())}, port {port}")
    result = await run(sandbox, f"timeout 5 getent hosts {_OUTSIDE}")
    must(result.exit_code != 0, f"the name {_OUTSIDE} was looked up from inside: {result.stdout!r}")


@asynccontextmanager
async def _listener() -> AsyncIterator[tuple[int, list[str]]]:
    """A listener on every address of this machine: its port, and who came."""
    seen: list[str] = []

    def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(str(writer.get_extra_info("peername")))
        writer.close()

    server = await asyncio.start_server(note, "0.0.0.0", 0)  # noqa: S104 - the sandbox may know us by any address
    async with server:
        yield server.sockets[0].getsockname()[1], seen


async def _knock(sandbox: Sandbox, port: int) -> None:
    for address in _addresses():
        await run(sandbox, f"timeout 3 bash -c ': < /dev/tcp/{address}/{port}'")
    await asyncio.sleep(0.1)


def _addresses() -> list[str]:
    """Ours: the loopback, and the one that the internet would see us come from."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Of a datagram socket this only chooses a route; nothing is sent.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ["127.0.0.1"]
        return ["127.0.0.1", probe.getsockname()[0]]


def _gateways(routes: str) -> list[str]:
    """Of Linux's table of routes, where an address is a number of the machine's own byte order."""
    words = [line.split() for line in routes.splitlines()[1:]]
    gateways = {word[2] for word in words if len(word) > 2 and word[2] != "00000000"}
    return [socket.inet_ntoa(int(gateway, 16).to_bytes(4, sys.byteorder)) for gateway in gateways]


def _content(path: Path) -> bytes:
    return path.read_bytes()


@contextmanager
def _folder_for_all() -> Iterator[Path]:
    """A folder of this machine with one file, open to the user of a sandbox, whoever that is."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        (folder / "file").write_text("ours\n")
        yield folder


def _contents(folder: Path) -> dict[str, str]:
    return {one.name: one.read_text() for one in folder.iterdir()}
