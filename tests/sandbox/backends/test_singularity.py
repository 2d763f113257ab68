"""The backend `singularity` with a real Apptainer."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import hermes_rl
from hermes_rl.core.errors import ConfigError, SandboxError
from hermes_rl.sandbox import cgroups
from hermes_rl.sandbox.backends.registry import make_backend
from hermes_rl.sandbox.backends.singularity import SingularityBackend, SingularitySandbox
from hermes_rl.sandbox.ledger import SandboxLedger
from hermes_rl.sandbox.process_tree import children, descendants
from hermes_rl.sandbox.protocol import Backend
from hermes_rl.sandbox.reaper import reap
from hermes_rl.sandbox.spec import DEFAULT_LIMITS, Limits, SandboxSpec
from tests.sandbox.living import living, nap
from tests.support.sandbox_parts import Parts

SOURCE = Path(next(iter(hermes_rl.__path__))).parent


class NotingLedger(SandboxLedger):
    """Remembers the control groups of all that was ever begun."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.groups: list[Path] = []

    def record(self, name: str, backend: str, settings: Mapping[str, Any], resources: Mapping[str, Any]) -> None:
        super().record(name, backend, settings, resources)
        self.groups += map(Path, resources["groups"])

    def left(self) -> list[Path]:
        return [group for group in self.groups if group.exists()]


@pytest.fixture
def ledger(tmp_path: Path) -> NotingLedger:
    return NotingLedger(tmp_path / "ledger")


@pytest.fixture
def open_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for images that the users of sandboxes can enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        monkeypatch.setenv("HERMES_HOME", directory)
        yield Path(directory)


@pytest.fixture
async def singularity(
    apptainer: Path, parts: Parts, ledger: NotingLedger, open_home: Path
) -> AsyncIterator[SingularityBackend]:
    backend = SingularityBackend(image=parts.root, binary=apptainer, ledger=ledger)
    yield backend
    await backend.close()


@pytest.fixture
async def cell(singularity: SingularityBackend) -> AsyncIterator[SingularitySandbox]:
    async with await singularity.start() as sandbox:
        yield sandbox


async def said(sandbox: SingularitySandbox, command: str) -> str:
    result = await sandbox.exec(command, timeout=30, merge_stderr=True)
    return result.stdout.decode(errors="replace")


async def test_it_fulfils_the_protocol_and_can_be_probed(singularity: SingularityBackend) -> None:
    assert isinstance(singularity, Backend)
    await singularity.probe()


async def test_commands_run_as_the_agent_without_any_capability(cell: SingularitySandbox) -> None:
    assert (await said(cell, "id -un; id -gn; pwd; umask")).split() == ["agent", "agent", "/workspace", "0022"]
    told = (await said(cell, "grep -E 'CapEff|CapPrm|NoNewPrivs' /proc/self/status")).split()
    assert told == ["CapPrm:", "0" * 16, "CapEff:", "0" * 16, "NoNewPrivs:", "1"]
    assert "Operation not permitted" in await said(cell, "unshare -m true")
    assert "failed" in await said(cell, "unshare -U true")
    assert "superuser" in await said(cell, "mount --bind /tmp /mnt")


async def test_the_network_is_off_unless_it_is_asked_for(
    cell: SingularitySandbox, singularity: SingularityBackend
) -> None:
    look = "tail -n +3 /proc/net/dev | cut -d: -f1; (exec 3<>/dev/tcp/192.0.2.1/80) 2>&1"
    seen = await said(cell, look)
    assert seen.split()[0] == "lo"
    assert "unreachable" in seen
    assert "localhost" in await said(cell, "getent hosts localhost")
    ours = Path("/proc/net/dev").read_text().splitlines()[2:]
    async with await singularity.start(SandboxSpec(network=True)) as online:
        seen = await said(online, "tail -n +3 /proc/net/dev | cut -d: -f1; cat /etc/resolv.conf")
        assert seen.split()[: len(ours)] == [line.split(":")[0].strip() for line in ours]
        assert Path("/etc/resolv.conf").read_text().strip() in seen


async def test_nothing_of_the_host_is_visible(
    singularity: SingularityBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "host file").write_text("host")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-this-must-never-be-seen")
    monkeypatch.setenv("APPTAINERENV_LEAKED", "sk-this-must-never-be-seen")
    async with await singularity.start() as one, await singularity.start() as other:
        await one.write("mine", b"private")
        names = (await said(other, "env | cut -d= -f1")).split()
        assert set(names) <= {"HOME", "LANG", "OLDPWD", "PATH", "PWD", "SHLVL", "TERM", "USER", "_"}
        everything = await said(
            other, f"cat /proc/*/environ; cat '{tmp_path}/host file'; ls /workspace /tmp /sys /home"
        )
        assert "sk-this" not in everything
        assert "No such file" in everything
        assert "mine" not in everything
        assert int(await said(other, "ls /proc | grep -c '^[0-9]*$'")) <= 6
        for pid in (one._transport.pid, *children(one._transport.pid)):
            assert b"sk-this" not in Path(f"/proc/{pid}/environ").read_bytes()


async def test_only_bounded_places_in_memory_can_be_written_to(cell: SingularitySandbox) -> None:
    mounts = [line.split() for line in (await said(cell, "cat /proc/self/mountinfo")).splitlines()]
    on_top = {words[4]: words for words in mounts}
    writable = {place for place, words in on_top.items() if "rw" in words[5].split(",")}
    assert writable == {"/dev/pts", "/dev/shm", "/run", "/tmp", "/workspace"}
    for place in writable - {"/dev/pts"}:
        assert "size=" in on_top[place][-1]
    places = "/usr/x /etc/x /etc/passwd /etc/hosts /var/tmp/x /dev/x /root/x /x"
    assert (await said(cell, f"for f in {places}; do echo >> $f; done; true")).count("\n") == len(places.split())


async def test_disk_is_held_at_its_limit(singularity: SingularityBackend) -> None:
    async with await singularity.start(SandboxSpec(limits=Limits(disk_mb=20))) as sandbox:
        for place in ("/workspace", "/tmp"):
            told = await said(sandbox, f"dd if=/dev/zero of={place}/x bs=1M count=40; stat -c %s {place}/x")
            assert "No space left" in told
            assert int(told.split()[-1]) <= 20 * 1024 * 1024
        assert await said(sandbox, "rm x; echo still well") == "still well\n"


async def test_memory_and_processes_are_held_at_their_limits(singularity: SingularityBackend) -> None:
    limits = Limits(memory_mb=128, processes=40, disk_mb=10)
    async with await singularity.start(SandboxSpec(limits=limits)) as sandbox:
        if "memory_mb" in singularity.capabilities.limits:
            hog = await sandbox.exec("perl -e '$x = \"x\" x (1 << 30); print length $x'", timeout=30)
            assert hog.exit_code == 137
        bomb = await said(sandbox, "for i in $(seq 100); do sleep 5 & done; jobs | wc -l; true")
        assert "Resource temporarily unavailable" in bomb
        await sandbox.end_processes()
        assert await said(sandbox, "echo still well") == "still well\n"


async def test_the_policy_can_neither_signal_nor_trace_nor_speak_for_the_warden(cell: SingularitySandbox) -> None:
    await said(cell, "kill -9 1; kill -STOP 1; kill -TERM 1; kill -HUP 1; kill -9 -1")
    assert "Permission denied" in await said(cell, "echo forged > /proc/1/fd/1")
    assert "Permission denied" in await said(cell, "head -c 1 /proc/1/mem")
    assert "Permission denied" in await said(cell, "cat /proc/1/environ")
    attach = "import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.ptrace(16, 1, 0, 0), ctypes.get_errno())"
    assert (await said(cell, f"python3 -c '{attach}'")).split() == ["-1", "1"]
    # A command's keeper is the warden's copy and as well protected; its number is its command's parent.
    assert "Permission denied" in await said(cell, "echo forged > /proc/$PPID/fd/0; ls -l /proc/$PPID/fd/")
    assert await said(cell, "echo still well") == "still well\n"


async def test_timeouts_and_end_processes_leave_nothing_alive(cell: SingularitySandbox) -> None:
    mine = nap()
    assert (await cell.exec(f"setsid {mine} & (env -i setsid {mine} &); {mine}", timeout=1)).timed_out
    assert living(mine) == []
    await said(cell, f"echo kept > file; setsid {mine} & (env -i setsid {mine} &)")
    await cell.end_processes()
    assert living(mine) == []
    assert await cell.read("file") == b"kept\n"
    # The warden is the first process and the one that looks is the only other, with its keeper.
    assert (await said(cell, "echo /proc/[0-9]*")).split()[0] == "/proc/1"


async def test_closing_leaves_no_process_and_no_control_group(
    singularity: SingularityBackend, ledger: NotingLedger
) -> None:
    mine = nap()
    async with await singularity.start() as sandbox:
        await said(sandbox, f"setsid {mine} &")
        processes = [sandbox._transport.pid, *descendants(sandbox._transport.pid)]
        assert len(processes) >= 3
        assert len(ledger.left()) == len(cgroups.available().limits & DEFAULT_LIMITS.named().keys())
    assert living(mine) == []
    assert ledger.left() == []
    assert [pid for pid in processes if Path(f"/proc/{pid}").exists() and _state(pid) != "Z"] == []


async def test_the_sandbox_dies_when_apptainer_does(singularity: SingularityBackend) -> None:
    mine = nap()
    async with await singularity.start() as sandbox:
        running = asyncio.ensure_future(sandbox.exec(f"setsid {mine} & {mine}", timeout=60))
        while len(living(mine)) < 2:
            await asyncio.sleep(0.02)
        os.kill(sandbox._transport.pid, signal.SIGKILL)
        with pytest.raises(SandboxError) as death:
            await running
        assert death.value.cause == "died"
        async with asyncio.timeout(20):
            while living(mine):
                await asyncio.sleep(0.02)


async def test_a_dead_warden_is_a_death(singularity: SingularityBackend) -> None:
    async with await singularity.start() as sandbox:
        os.kill(children(sandbox._transport.pid)[0], signal.SIGKILL)
        with pytest.raises(SandboxError) as death:
            await sandbox.exec("sleep 600", timeout=60)
        assert death.value.cause == "died"
        assert not await sandbox.alive()


OWNER = """
    import asyncio, sys
    from hermes_rl.sandbox.backends.registry import make_backend

    async def main(image, binary, count, nap):
        backend = make_backend("singularity", {"image": image, "binary": binary})
        turns = asyncio.Semaphore(4)

        async def one():
            async with turns:
                sandbox = await backend.start()
            await sandbox.exec(f"echo kept > file; setsid {nap} & (env -i setsid {nap} &)", timeout=60)
            return sandbox

        sandboxes = await asyncio.gather(*(one() for _ in range(int(count))))
        print("ready", flush=True)
        await asyncio.sleep(600)

    asyncio.run(main(*sys.argv[1:]))
"""


def mounts(mine: Path) -> list[str]:
    """What is mounted on this machine, but for what tests beside this one have in folders of their own."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if "/pytest-" not in line or str(mine) in line]


@pytest.mark.slow
async def test_fifty_sandboxes_of_a_killed_owner_leave_nothing(apptainer: Path, parts: Parts, tmp_path: Path) -> None:
    mine, mounted = nap(), mounts(tmp_path)
    words = [str(parts.root), str(apptainer), "50", mine]
    owner = await asyncio.create_subprocess_exec(
        *[sys.executable, "-c", textwrap.dedent(OWNER), *words],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "HERMES_HOME": str(tmp_path)},
    )
    assert owner.stdout is not None
    assert await owner.stdout.readline() == b"ready\n"
    assert len(living(mine)) == 100
    (entries,) = (tmp_path / "rl" / "sandboxes").iterdir()
    records = [json.loads(line) for line in entries.read_text().splitlines()]
    groups = [Path(group) for record in records for group in record["resources"]["groups"]]
    assert len(groups) == 50 * len(cgroups.available().limits & DEFAULT_LIMITS.named().keys())
    owner.kill()
    await owner.communicate()
    reaped = await reap(tmp_path / "rl" / "sandboxes")
    assert (reaped.owners, len(reaped.removed), reaped.left) == (1, 50, [])
    async with asyncio.timeout(30):
        while living(mine):
            await asyncio.sleep(0.05)
    assert [group for group in groups if group.exists()] == []
    assert mounts(tmp_path) == mounted


async def test_a_cancelled_start_leaves_nothing(singularity: SingularityBackend, ledger: NotingLedger) -> None:
    children_before = set(children(os.getpid()))
    for milliseconds in range(0, 300, 20):
        starting = asyncio.ensure_future(singularity.start())
        await asyncio.sleep(milliseconds / 1000)
        starting.cancel()
        for started in await asyncio.gather(starting, return_exceptions=True):
            if isinstance(started, SingularitySandbox):
                await started.close()
            else:
                assert isinstance(started, asyncio.CancelledError)
    assert ledger.groups
    assert ledger.left() == []
    assert set(children(os.getpid())) == children_before


# --- images ---


async def test_a_setup_is_baked_once_by_root_and_its_files_lie_outside_the_workspace_too(
    singularity: SingularityBackend,
) -> None:
    said_by_baking: list[str] = []
    setup = """
        set -e
        useradd --uid 1234 carol
        date +%N > /usr/local/share/made
        cp given copied
        ! mount --bind /tmp /mnt
        ! (echo 0 > /proc/sys/kernel/panic) 2>/dev/null
    """
    spec = SandboxSpec(setup=setup, files={"given": b"data\n", "/opt/data/file": b"outside\n"})
    await singularity.prepare(spec, said_by_baking.append)
    assert said_by_baking
    seen = []
    for _ in range(2):
        async with await singularity.start(spec) as sandbox:
            seen.append(await said(sandbox, "cat copied /opt/data/file /usr/local/share/made; id -nu 1234; id -nu"))
            assert "Read-only" in await said(sandbox, "touch /usr/local/share/made")
    assert seen[0] == seen[1]
    first = seen[0].split()
    assert (first[:2], first[-2:]) == (["data", "outside"], ["carol", "agent"])


async def test_an_image_may_be_a_tar_archive(singularity: SingularityBackend, parts: Parts) -> None:
    async with await singularity.start(SandboxSpec(image=str(parts.image))) as sandbox:
        assert await said(sandbox, "echo well") == "well\n"


async def test_without_an_image_the_message_says_where_to_name_one(apptainer: Path) -> None:
    backend = make_backend("singularity", {"binary": str(apptainer)})
    with pytest.raises(ConfigError, match="needs an image"):
        await backend.start()


async def test_a_sif_file_is_refused_with_the_command_that_makes_a_directory_of_it(
    singularity: SingularityBackend,
) -> None:
    with pytest.raises(ConfigError, match=r"apptainer build --sandbox DIRECTORY /images/some\.sif"):
        await singularity.start(SandboxSpec(image="/images/some.sif"))


async def test_an_image_without_perl_is_told(singularity: SingularityBackend, open_home: Path) -> None:
    image = open_home / "image"
    for name in ("bin", "usr", "etc", "tmp", "dev", "proc"):
        (image / name).mkdir(parents=True)
    with pytest.raises(SandboxError, match="needs bash and perl") as broken:
        await singularity.start(SandboxSpec(image=str(image)))
    assert broken.value.cause == "start"


async def test_without_apptainer_the_message_says_what_to_install(parts: Parts) -> None:
    with pytest.raises(SandboxError, match="install Apptainer") as missing:
        await SingularityBackend(image=parts.root, binary="/nonexistent/apptainer").start()
    assert missing.value.cause == "start"


async def test_a_start_that_takes_too_long_is_given_up(apptainer: Path, parts: Parts, ledger: NotingLedger) -> None:
    with pytest.raises(SandboxError) as late:
        await SingularityBackend(image=parts.root, binary=apptainer, start_timeout=0.02, ledger=ledger).start()
    assert late.value.cause == "start_timeout"
    assert ledger.left() == []


ORDINARY = """
    import asyncio, sys
    from hermes_rl.sandbox.backends.registry import make_backend
    from hermes_rl.sandbox.spec import SandboxSpec

    async def main(archive, binary):
        backend = make_backend("singularity", {"binary": binary})
        spec = SandboxSpec(image=archive, setup="set -e; test $(id -u) = 0; echo baked > /usr/local/share/made")
        async with await backend.start(spec) as sandbox:
            command = "id -un; grep CapEff /proc/self/status; cat /usr/local/share/made; kill -9 1; setsid sleep 99 &"
            print((await sandbox.exec(command, timeout=20)).stdout.decode())
            print((await sandbox.exec("sleep 5", timeout=0.3)).exit_code)
            await sandbox.end_processes()
            print(await sandbox.alive())

    asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="this process is an ordinary user already, as in every other test")
def test_it_works_for_an_ordinary_user(apptainer: Path, parts: Parts) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        # The interpreter and the checkout may lie where only root may look, hence the system's python and a copy.
        subprocess.run(["cp", "-rL", SOURCE / "hermes_rl", directory], check=True)
        subprocess.run(["chmod", "-R", "a+rX", directory], check=True)
        temporary = Path(directory, "tmp")
        temporary.mkdir()
        temporary.chmod(0o1777)
        # The archive may lie in a home that only root may enter.
        image = Path(directory, "image.tar")
        shutil.copy(parts.image, image)
        become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3"]
        ran = subprocess.run(
            [*become, "-c", textwrap.dedent(ORDINARY), str(image), str(apptainer)],
            env={
                "PYTHONPATH": directory,
                "PATH": "/usr/bin:/bin",
                "TMPDIR": str(temporary),
                "HERMES_HOME": str(temporary / "home"),
            },
            capture_output=True,
            cwd="/",
            check=False,
            timeout=100,
        )
        words = ran.stdout.decode().split()
        assert words == ["agent", "CapEff:", "0" * 16, "baked", "124", "True"], ran.stderr.decode()


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
