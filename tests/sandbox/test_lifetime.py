import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest
import uvloop

import hermes_rl
from hermes_rl.core.errors import ConfigError, SandboxError
from hermes_rl.sandbox.backends import bwrap_arguments
from hermes_rl.sandbox.backends.bubblewrap import BubblewrapBackend
from hermes_rl.sandbox.backends.local import LocalBackend
from hermes_rl.sandbox.backends.registry import open_backend
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.process_tree import all_pids, children
from hermes_rl.sandbox.protocol import Backend
from hermes_rl.sandbox.protocol import Backend as BackendProtocol
from tests.sandbox.living import arguments, living, nap

SOURCE = Path(next(iter(hermes_rl.__path__))).parent


def workspaces() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob(f"hermes-rl-{os.getpid()}-*"))


async def test_a_closed_sandbox_leaves_no_directory(backend: Backend) -> None:
    before = workspaces()
    async with await backend.start() as one, await backend.start():
        await one.exec(
            "mkdir -p locked/in 'd\nir'; touch locked/in/file; chmod 0 locked/in; chmod 555 locked; "
            "ln -s / root; ln -s nowhere broken; for i in $(seq 100); do echo > $i; done; chmod 0 .",
            timeout=10,
        )
        assert len(workspaces() - before) == (1 if backend.name == "local" else 0)
    assert workspaces() == before
    assert Path("/etc/passwd").exists()


async def test_a_sandbox_whose_first_process_died_says_so(bubblewrap: BubblewrapBackend) -> None:
    async with await bubblewrap.start() as jail:
        running = asyncio.ensure_future(jail.exec("sleep 600", timeout=60))
        await asyncio.sleep(0.1)
        os.kill(children(jail._transport.pid)[0], signal.SIGKILL)
        with pytest.raises(SandboxError) as death:
            await running
        assert death.value.cause == "died"
        assert not await jail.alive()
        with pytest.raises(SandboxError, match="first process"):
            await jail.exec("true", timeout=10)


async def test_the_sandbox_dies_when_bwrap_does(bubblewrap: BubblewrapBackend) -> None:
    mine = nap()
    async with await bubblewrap.start() as jail:
        await jail.exec(f"setsid {mine} &", timeout=10)
        os.kill(jail._transport.pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            while living(mine):
                await asyncio.sleep(0.02)


OWNER = """
    import asyncio, sys
    from hermes_rl.sandbox.backends.bubblewrap import BubblewrapBackend

    async def main():
        backend = BubblewrapBackend()
        sandbox = await backend.start()
        await sandbox.exec("setsid NAP & (env -i setsid NAP &); true", timeout=10)
        print("ready", flush=True)
        await sandbox.exec("NAP", timeout=600)

    asyncio.run(main())
"""


def test_killing_the_owner_leaves_no_process() -> None:
    mine = nap()
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER).replace("NAP", mine)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        deadline = time.monotonic() + 10
        while len(living(mine)) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(living(mine)) == 3
        owner.kill()
        owner.wait()
        while living(mine) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert living(mine) == []
    for left in Path(tempfile.gettempdir()).glob(f"hermes-rl-{owner.pid}-*"):
        subprocess.run(["rm", "-rf", left], check=True)


STARTER = """
    import asyncio
    from hermes_rl.sandbox.backends.bubblewrap import BubblewrapBackend

    async def main():
        backend = BubblewrapBackend()
        print("ready", flush=True)
        await asyncio.gather(*(backend.start() for _ in range(8)))
        await asyncio.sleep(600)

    asyncio.run(main())
"""


def test_killing_the_owner_while_it_starts_sandboxes_leaves_no_process() -> None:
    for milliseconds in range(10, 100, 10):
        owner = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(STARTER)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
        with owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"ready\n"
            time.sleep(milliseconds / 1000)
            owner.kill()
        directory = f"hermes-rl-{owner.pid}-"
        deadline = time.monotonic() + 5
        while left := [pid for pid in all_pids() if directory.encode() in arguments(pid)]:
            assert time.monotonic() < deadline, left
            time.sleep(0.01)
        for path in Path(tempfile.gettempdir()).glob(f"{directory}*"):
            subprocess.run(["rm", "-rf", path], check=True)


async def test_a_forked_worker_does_not_keep_a_sandbox_alive(bubblewrap: BubblewrapBackend) -> None:
    async with await bubblewrap.start() as jail:
        assert jail._transport._socket is not None
        control = jail._transport._socket.fileno()
        worker = os.fork()
        if worker == 0:
            try:
                os.fstat(control)
            except OSError:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == 0
        assert (await jail.exec("echo on", timeout=10)).stdout == b"on\n"


ORDINARY = """
    import asyncio
    from hermes_rl.sandbox.backends.registry import open_backend

    async def main():
        backend = await open_backend("auto")
        async with await backend.start() as sandbox:
            result = await sandbox.exec("id -un; grep CapEff /proc/self/status; mkdir -p a/b; chmod 0 a", timeout=10)
            print(result.stdout.decode())
            print(result.stderr.decode())
            print((await sandbox.exec("(env -i setsid sleep 600 &); sleep 600", timeout=0.3)).exit_code)
            await sandbox.end_processes()
            print(await sandbox.alive())

    asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="this process is an ordinary user already, as in every other test")
def test_it_works_for_an_ordinary_user() -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        # The interpreter and the checkout may lie where only root may look, hence the system's python and a copy.
        subprocess.run(["cp", "-rL", SOURCE / "hermes_rl", directory], check=True)
        subprocess.run(["chmod", "-R", "a+rX", directory], check=True)
        temporary = Path(directory, "tmp")
        temporary.mkdir()
        temporary.chmod(0o1777)
        ran = subprocess.run(
            [
                "setpriv",
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                "/usr/bin/python3",
                "-c",
                textwrap.dedent(ORDINARY),
            ],
            env={
                "PYTHONPATH": directory,
                "PATH": "/usr/bin:/bin",
                "TMPDIR": str(temporary),
                "HERMES_HOME": str(temporary / "home"),
            },
            capture_output=True,
            cwd="/",
            check=False,
            timeout=50,
        )
        assert ran.stdout.decode().split() == ["agent", "CapEff:", "0" * 16, "124", "True"], ran.stderr.decode()
        assert [path for path in temporary.rglob("*") if path.is_file()] == []


async def test_fifty_sandboxes_live_side_by_side(bubblewrap: BubblewrapBackend) -> None:
    pool = SandboxPool(bubblewrap, max_live=50)

    async def rollout(number: int) -> bytes:
        async with pool.sandbox() as sandbox:
            await sandbox.write("me", str(number).encode())
            await together.wait()
            return await sandbox.read("me")

    together = asyncio.Barrier(50)
    assert await asyncio.gather(*(rollout(number) for number in range(50))) == [str(n).encode() for n in range(50)]
    assert pool.live == 0


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("name", ["auto", "local"])
def test_both_event_loops_do(name: str, loop: object) -> None:
    async def main() -> None:
        backend = await open_backend(name)
        async with await backend.start() as sandbox:
            mine = nap()
            data = os.urandom(3_000_000)
            await sandbox.write("blob", data)
            assert await sandbox.read("blob") == data
            result = await sandbox.exec(f"echo out; echo err >&2; setsid {mine} & sleep 600", timeout=2)
            assert (result.stdout, result.stderr, result.timed_out) == (b"out\n", b"err\n", True)
            assert living(mine) == []
            assert (await sandbox.exec(f"{mine} & echo done", timeout=60)).stdout == b"done\n"
            assert (await sandbox.exec("seq 100000", max_output=10, timeout=60)).truncated
            running = asyncio.ensure_future(sandbox.exec(f"{mine}", timeout=60))
            await asyncio.sleep(0.2)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert living(mine) == []

    with asyncio.Runner(loop_factory=loop) as runner:  # type: ignore[arg-type]
        runner.run(main())


async def test_a_start_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    before = workspaces()
    monkeypatch.setattr("hermes_rl.sandbox.backends.bwrap_arguments.PROGRAM", "sleep 600")
    with pytest.raises(SandboxError) as late:
        await BubblewrapBackend(start_timeout=0.3).start()
    assert late.value.cause == "start_timeout"
    assert workspaces() == before


async def test_a_cancelled_start_leaves_nothing(bubblewrap: BubblewrapBackend) -> None:
    before = workspaces()
    for milliseconds in range(20):
        starting = asyncio.ensure_future(bubblewrap.start())
        await asyncio.sleep(milliseconds / 1000)
        if starting.cancel():
            await asyncio.gather(starting, return_exceptions=True)
            assert starting.cancelled()
        else:
            await (await starting).close()
    assert workspaces() == before
    assert [pid for pid in all_pids() if f"hermes-rl-{os.getpid()}-".encode() in arguments(pid)] == []


async def test_without_bwrap_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("hermes_rl.sandbox.guest_agent.client.PATH", str(tmp_path))
    with pytest.raises(SandboxError, match="apt-get install bubblewrap") as missing:
        await open_backend("auto")
    assert missing.value.cause == "start"


async def test_without_user_namespaces_the_message_names_the_sysctl(monkeypatch: pytest.MonkeyPatch) -> None:
    forbidding = bwrap_arguments.LAUNCH.replace("max_user_namespaces', '1'", "max_user_namespaces', '0'")
    monkeypatch.setattr(bwrap_arguments, "LAUNCH", forbidding)
    with pytest.raises(SandboxError, match=r"sysctl user\.max_user_namespaces") as forbidden:
        await BubblewrapBackend().start()
    assert forbidden.value.cause == "start"


async def test_an_unknown_backend_is_a_config_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'dokcer'.*auto, bubblewrap, .*docker"):
        await open_backend("dokcer")


async def test_auto_is_bubblewrap_and_the_backends_fulfil_the_protocol() -> None:
    assert (await open_backend("auto")).name == "bubblewrap"
    assert isinstance(BubblewrapBackend(), BackendProtocol)
    assert isinstance(LocalBackend(), BackendProtocol)


def test_local_admits_that_it_is_no_sandbox() -> None:
    capabilities = LocalBackend().capabilities
    assert not (capabilities.isolates_files or capabilities.isolates_processes or capabilities.network_off)
