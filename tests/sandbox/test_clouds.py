"""What the backends of clouds promise alike, each with its provider's own SDK against the contract server."""

import asyncio
import os
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import hermes_rl
from hermes_rl.core.errors import SandboxError
from hermes_rl.sandbox.backends.cloud import CloudBackend
from hermes_rl.sandbox.backends.registry import make_backend
from hermes_rl.sandbox.ledger import SandboxLedger
from hermes_rl.sandbox.reaper import reap
from hermes_rl.sandbox.spec import ROOT, SandboxSpec
from tests.sandbox.living import begun

SOURCE = Path(next(iter(hermes_rl.__path__))).parent

OWNER = """
    import asyncio, sys
    from hermes_rl.sandbox.backends.registry import make_backend

    async def main(name, lease):
        backend = make_backend(name, {"lease": float(lease)})
        sandboxes = await asyncio.gather(*(backend.start() for _ in range(3)))
        for sandbox in sandboxes:
            await sandbox.exec("setsid sleep 600 & true", timeout=20)
        print("ready", flush=True)
        await asyncio.sleep(600)

    asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(params=["daytona", "modal"])
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def cloud(name: str, request: pytest.FixtureRequest) -> Any:
    """The contract server of one of them."""
    return request.getfixturevalue(f"{name}_cloud")


@pytest.fixture
def ledgers(tmp_path: Path) -> Path:
    return tmp_path / "rl" / "sandboxes"


@pytest.fixture
async def make(name: str, cloud: Any, ledgers: Path) -> AsyncIterator[Callable[..., CloudBackend]]:
    made: list[CloudBackend] = []

    def make_one(**settings: Any) -> CloudBackend:
        backend = make_backend(name, settings, SandboxLedger(ledgers))
        assert isinstance(backend, CloudBackend)
        made.append(backend)
        return backend

    yield make_one
    for backend in made:
        await backend.close()


@pytest.fixture
def backend(make: Callable[..., CloudBackend]) -> CloudBackend:
    return make()


async def start_owner(name: str, home: Path, lease: float = 60) -> asyncio.subprocess.Process:
    """Another process, with three sandboxes."""
    owner = await asyncio.create_subprocess_exec(
        *[sys.executable, "-c", textwrap.dedent(OWNER), name, str(lease)],
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "HERMES_HOME": str(home)},
    )
    assert owner.stdout is not None
    assert await owner.stdout.readline() == b"ready\n"
    return owner


async def until(done: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        await asyncio.sleep(0.05)
    return done()


async def refused(work: Awaitable[object]) -> SandboxError:
    with pytest.raises(SandboxError) as caught:
        await work
    return caught.value


async def test_a_whole_life(backend: CloudBackend, cloud: Any, ledgers: Path) -> None:
    data = bytes(range(256)) * 40_000
    async with await backend.start(SandboxSpec(files={"given": b"x\n"}, setup="id -u > made")) as sandbox:
        assert len(cloud.sandboxes) == 1
        assert list(ledgers.iterdir())
        result = await sandbox.exec("cat given made; echo bad >&2; exit 3", timeout=20)
        assert (result.exit_code, result.stdout, result.stderr) == (3, b"x\n0\n", b"bad\n")
        await sandbox.write("file", data)
        assert await sandbox.read("file", max_bytes=len(data)) == data
        assert (await sandbox.exec("sleep 50 & sleep 50", timeout=0.5)).timed_out
        assert (await sandbox.exec("id -u", timeout=20, user=ROOT)).stdout == b"0\n"
        assert (await sandbox.exec("env", timeout=20)).stdout.count(b"MODAL") == 0
    assert cloud.sandboxes == {}
    assert list(ledgers.iterdir()) == []


async def test_many_commands_share_the_connection(backend: CloudBackend) -> None:
    async with await backend.start() as sandbox:
        loud = [sandbox.exec("head -c 4000000 /dev/urandom | tee >(cksum >&2) | cksum", timeout=60) for _ in range(3)]
        small = [sandbox.exec(f"echo {number}", timeout=60) for number in range(30)]
        big = sandbox.exec("head -c 8000000 /dev/zero", timeout=60)
        *said, zeros = await asyncio.gather(*loud, *small, big)
        assert zeros.stdout == bytes(8_000_000)
        assert [result.stdout for result in said[3:]] == [b"%d\n" % number for number in range(30)]
        assert all(result.stdout == result.stderr for result in said[:3])


async def test_the_sandboxes_of_a_killed_owner_are_reaped(name: str, cloud: Any, tmp_path: Path, ledgers: Path) -> None:
    owner = await start_owner(name, tmp_path)
    assert (await reap(ledgers)).owners == 0
    assert len(cloud.sandboxes) == 3
    owner.kill()
    await owner.wait()
    reaped = await reap(ledgers)
    assert (len(reaped.removed), reaped.left) == (3, [])
    assert cloud.sandboxes == {}
    assert list(ledgers.iterdir()) == []


async def test_a_sandbox_whose_number_its_owner_never_knew_is_reaped(
    make: Callable[..., CloudBackend], cloud: Any
) -> None:
    sandbox = await make().start()
    await make().reap({"name": sandbox.name, "id": None})
    assert cloud.sandboxes == {}


async def test_reaping_what_is_gone_is_harmless(backend: CloudBackend) -> None:
    sandbox = await backend.start()
    await sandbox.close()
    await backend.reap(sandbox.resources)


async def test_the_provider_removes_what_nobody_holds_or_reaps(name: str, cloud: Any, tmp_path: Path) -> None:
    if name == "daytona":
        cloud.minute = 0.2
    else:
        cloud.second = 0.01
    # Renewed four times before it ends, and seen after it would have: a busy machine renews late.
    owner = await start_owner(name, tmp_path, lease=4)
    await asyncio.sleep(5)
    assert len(cloud.sandboxes) == 3
    owner.kill()
    await owner.wait()
    assert await until(lambda: not cloud.sandboxes, 10)


async def test_a_cancelled_start_leaves_nothing(backend: CloudBackend, cloud: Any, ledgers: Path) -> None:
    cloud.slow_start = 0.3
    await (await backend.start()).close()
    for delay in (0.05, 0.2, 0.35, 0.5):
        starting = asyncio.ensure_future(backend.start())
        await asyncio.sleep(delay)
        if not starting.cancel():
            await (await starting).close()
        await asyncio.gather(starting, return_exceptions=True)
    assert await until(lambda: not cloud.sandboxes, 10)
    assert await until(lambda: not list(ledgers.iterdir()), 10)


async def test_a_start_is_bounded(make: Callable[..., CloudBackend], cloud: Any) -> None:
    cloud.slow_start = 1.5
    error = await refused(make(start_timeout=0.5).start())
    assert error.cause == "start_timeout"
    assert cloud.sandboxes == {}


async def test_a_full_account_is_a_failed_start_with_advice(backend: CloudBackend, cloud: Any) -> None:
    cloud.quota = 1
    async with await backend.start():
        error = await refused(backend.start())
    assert error.cause == "start"
    assert "run fewer sandboxes at once" in str(error)
    async with await backend.start():
        assert len(cloud.sandboxes) == 1


async def test_a_sandbox_that_the_provider_took_away_is_dead_and_can_be_closed(
    backend: CloudBackend, cloud: Any
) -> None:
    sandbox = await backend.start()
    running = asyncio.ensure_future(sandbox.exec("touch begun; sleep 60", timeout=60))
    await begun(sandbox)
    (machine,) = cloud.sandboxes.values()
    await (cloud._destroy(machine) if hasattr(cloud, "_destroy") else cloud._end(machine))
    assert (await refused(running)).cause == "died"
    assert not await sandbox.alive()
    await sandbox.close()


async def test_what_cannot_be_removed_is_removed_later(backend: CloudBackend, cloud: Any, ledgers: Path) -> None:
    sandbox = await backend.start()
    cloud.broken = True
    await sandbox.close()
    assert len(cloud.sandboxes) == 1
    assert list(ledgers.iterdir())
    cloud.broken = False
    async with await backend.start():
        assert len(cloud.sandboxes) == 1
    assert list(ledgers.iterdir()) == []


async def test_a_warden_that_falls_silent_is_given_up(make: Callable[..., CloudBackend], cloud: Any) -> None:
    sandbox = await make(lease=2).start()
    (machine,) = cloud.sandboxes.values()
    stop = await machine.machine.run(["bash", "-c", "kill -STOP $(pgrep -x perl)"])
    await stop.wait()
    assert (await refused(sandbox.exec("true", timeout=20))).cause in {"died", "hang"}
    await sandbox.close()
    assert cloud.sandboxes == {}


async def test_an_image_without_perl_is_told(backend: CloudBackend, cloud: Any) -> None:
    cloud.lacking = "perl"
    error = await refused(backend.start())
    assert error.cause == "start"
    assert "needs bash and perl" in str(error)
    assert cloud.sandboxes == {}
