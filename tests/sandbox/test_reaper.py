"""The ledger and the reaper: what a dead owner left is removed, what a living one has is not touched."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import hermes_rl
from hermes_rl.core.errors import SandboxError
from hermes_rl.sandbox import cgroups
from hermes_rl.sandbox.backends.bubblewrap import BubblewrapBackend
from hermes_rl.sandbox.backends.local import LocalBackend
from hermes_rl.sandbox.backends.registry import make_backend
from hermes_rl.sandbox.ledger import SandboxLedger, backends_in_use
from hermes_rl.sandbox.reaper import reap, reap_periodically
from hermes_rl.sandbox.spec import DEFAULT_LIMITS
from tests.sandbox.living import living, nap

SOURCE = Path(next(iter(hermes_rl.__path__))).parent

OWNER = """
    import asyncio, sys
    from hermes_rl.sandbox.backends.registry import make_backend

    async def main(name, count, nap):
        backend = make_backend(name)
        sandboxes = await asyncio.gather(*(backend.start() for _ in range(int(count))))
        for sandbox in sandboxes:
            await sandbox.exec(f"echo kept > file; setsid {nap} & (env -i setsid {nap} &)", timeout=20)
        print("ready", flush=True)
        await asyncio.sleep(600)

    asyncio.run(main(*sys.argv[1:]))
"""


def start_owner(home: Path, backend: str, count: int, mine: str) -> "subprocess.Popen[bytes]":
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER), backend, str(count), mine],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "HERMES_HOME": str(home), "TMPDIR": str(home)},
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"ready\n"
    return owner


def entry(name: str) -> str:
    """A line of a ledger, of a sandbox of which nothing is there."""
    resources = {"warden": "none-such", "directories": []}
    return json.dumps({"name": name, "backend": "local", "settings": {}, "resources": resources}) + "\n"


def groups_in(ledger: Path) -> list[Path]:
    """The control groups that a ledger names and that are there."""
    records = [json.loads(line) for line in ledger.read_text().splitlines() if line.endswith("}")]
    named = [Path(group) for record in records for group in record.get("resources", {}).get("groups", ())]
    return [group for group in named if group.exists()]


@pytest.mark.parametrize("backend", ["bubblewrap", "local"])
async def test_fifty_sandboxes_of_a_killed_owner_leave_nothing(backend: str, tmp_path: Path) -> None:
    mine = nap()
    owner = start_owner(tmp_path, backend, 50, mine)
    ledgers = tmp_path / "rl" / "sandboxes"
    async with asyncio.timeout(60):
        while len(living(mine)) != 100:
            await asyncio.sleep(0.05)
    before = await reap(ledgers)
    assert (before.owners, len(living(mine))) == (0, 100), "a living owner's sandboxes are not touched"
    owner.kill()
    owner.wait()
    assert owner.stdout is not None
    owner.stdout.close()
    (ledger,) = ledgers.iterdir()
    groups = groups_in(ledger)
    of_one = cgroups.available().groups("any", DEFAULT_LIMITS)
    assert len(groups) == (0 if backend == "local" else 50 * len(of_one))
    reaped = await reap(ledgers)
    deadline = time.monotonic() + 20
    while living(mine) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert (reaped.owners, len(reaped.removed), reaped.left) == (1, 50, [])
    assert living(mine) == []
    assert not ledger.exists()
    assert list(tmp_path.glob("hermes-rl-*")) == []
    assert [group for group in groups if group.exists()] == []


async def test_a_local_wardens_death_too_is_seen_to(tmp_path: Path) -> None:
    mine = nap()
    owner = start_owner(tmp_path, "local", 1, mine)
    for pid in _wardens(owner.pid):
        os.kill(pid, 9)
    owner.kill()
    owner.wait()
    assert owner.stdout is not None
    owner.stdout.close()
    await reap(tmp_path / "rl" / "sandboxes")
    assert list(tmp_path.glob("hermes-rl-*")) == []
    assert living(mine) == []


def _wardens(owner: int) -> list[int]:
    return list(map(int, Path(f"/proc/{owner}/task/{owner}/children").read_text().split()))


async def test_a_closed_backend_leaves_no_ledger(tmp_path: Path) -> None:
    for backend in (BubblewrapBackend(ledger=SandboxLedger(tmp_path)), LocalBackend(ledger=SandboxLedger(tmp_path))):
        async with await backend.start(), await backend.start():
            assert len(list(tmp_path.iterdir())) == 1
        assert list(tmp_path.iterdir()) == []


async def test_a_torn_last_line_is_passed_over(tmp_path: Path) -> None:
    ledger = SandboxLedger(tmp_path)
    ledger.record("one", "local", {}, {"warden": "none-such", "directories": []})
    with ledger.path.open("ab") as file:
        file.write(b'{"name": "two", "back')
    text = ledger.path.read_bytes()
    ledger.remove("one")
    (tmp_path / "dead.jsonl").write_bytes(text)
    reaped = await reap(tmp_path)
    assert [one.name for one in reaped.removed] == ["one"]
    assert list(tmp_path.iterdir()) == []


async def test_what_cannot_be_removed_now_stays_for_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dead.jsonl").write_text(entry("a") + entry("b") + '{"name": "a", "ended": true}\n')

    async def down(self: LocalBackend, resources: Mapping[str, Any]) -> None:
        raise OSError("the daemon is down")

    with monkeypatch.context() as patched:
        patched.setattr(LocalBackend, "reap", down)
        reaped = await reap(tmp_path)
    assert [(one.name, reason) for one, reason in reaped.left] == [("b", "the daemon is down")]
    assert [one.name for one in (await reap(tmp_path)).removed] == ["b"]
    assert list(tmp_path.iterdir()) == []


async def test_a_dry_run_only_lists(tmp_path: Path) -> None:
    (tmp_path / "dead.jsonl").write_text('{"name": "a", "backend": "local", "settings": {}, "resources": {}}\n')
    assert [one.name for one in (await reap(tmp_path, dry_run=True)).removed] == ["a"]
    assert (tmp_path / "dead.jsonl").exists()


async def test_reaping_goes_on_in_the_background(tmp_path: Path) -> None:
    async with reap_periodically(tmp_path, every=0.02):
        await asyncio.sleep(0.05)
        late = tmp_path / "dead.jsonl"
        late.write_text(entry("a"))
        async with asyncio.timeout(5):
            while late.exists():
                await asyncio.sleep(0.01)


async def test_two_reapers_at_once_share_the_work(tmp_path: Path) -> None:
    for owner in range(10):
        (tmp_path / f"{owner}.jsonl").write_text(entry(f"s{owner}"))
    one, other = await asyncio.gather(reap(tmp_path), reap(tmp_path))
    assert sorted(removed.name for removed in one.removed + other.removed) == sorted(f"s{owner}" for owner in range(10))


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory on a file system that has no room for another byte."""
    place = tmp_path / "full"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=8", "full", place], check=True)
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system to fill")
@pytest.mark.parametrize("name", ["bubblewrap", "local"])
async def test_on_a_full_disk_no_sandbox_is_started_and_nothing_is_left(name: str, full_disk: Path) -> None:
    ledger = SandboxLedger(full_disk)
    ledger.record("first", name, {}, {})
    (full_disk / "rest").write_bytes(b"")
    with contextlib.suppress(OSError):
        (full_disk / "rest").write_bytes(bytes(8192))
    backend = make_backend(name, ledger=ledger)
    with pytest.raises(SandboxError) as full:
        await asyncio.gather(*(backend.start() for _ in range(64)))
    assert full.value.cause == "ledger"
    assert "HERMES_HOME" in str(full.value)
    await backend.close()
    assert groups_in(ledger.path) == []


def test_the_backends_of_living_owners_are_told(tmp_path: Path) -> None:
    living = SandboxLedger(tmp_path)
    living.record("one", "docker", {}, {})
    (tmp_path / "1-dead.jsonl").write_text(entry("two"))
    assert backends_in_use(tmp_path) == {"docker"}
    living.remove("one")
    assert backends_in_use(tmp_path) == set()
