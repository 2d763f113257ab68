import asyncio
import ctypes
import os
import secrets
import socket
import tempfile
from pathlib import Path

import pytest

from hermes_rl.sandbox.backends.bubblewrap import BubblewrapBackend
from hermes_rl.sandbox.process_tree import children
from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.sandbox.spec import SandboxSpec
from tests.sandbox.living import living, nap

SECRET = "sk-this-must-never-be-seen"


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)


@pytest.mark.usefixtures("secret")
async def test_nothing_of_our_environment_is_visible(sandbox: Sandbox) -> None:
    seen = await sandbox.exec("env; cat /proc/self/environ /proc/$$/environ", timeout=10)
    names = (await sandbox.exec("env | cut -d= -f1", timeout=10)).stdout.decode().split()
    assert b"HOME=" in seen.stdout
    assert SECRET.encode() not in seen.stdout
    assert set(names) <= {"HOME", "LANG", "OLDPWD", "PATH", "PWD", "SHLVL", "TERM", "USER", "_"}


@pytest.mark.usefixtures("secret")
async def test_no_process_in_the_sandbox_shows_our_environment(bubblewrap: BubblewrapBackend) -> None:
    async with await bubblewrap.start() as jail:
        watching = jail.exec("for i in $(seq 50); do cat /proc/*/environ 2>/dev/null; done", timeout=20)
        seen, *_ = await asyncio.gather(watching, *(jail.exec("true", timeout=20) for _ in range(20)))
        assert b"HOME=" in seen.stdout
        assert SECRET.encode() not in seen.stdout
        for pid in (jail._transport.pid, *children(jail._transport.pid)):
            assert SECRET.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


async def test_there_is_no_network_but_the_loopback(jail: Sandbox) -> None:
    seen = await jail.exec("tail -n +3 /proc/net/dev | cut -d: -f1; (exec 3<>/dev/tcp/192.0.2.1/80) 2>&1", timeout=10)
    assert seen.stdout.decode().split()[0] == "lo"
    assert b"unreachable" in seen.stdout


async def test_the_host_and_other_workspaces_are_invisible(bubblewrap: BubblewrapBackend, tmp_path: Path) -> None:
    (tmp_path / "host file").write_text("host")
    async with await bubblewrap.start() as one, await bubblewrap.start() as other:
        await one.write("mine", b"private")
        inside = await other.exec(
            f"ls /tmp /workspace; ls {tempfile.gettempdir()}/hermes-rl-*; cat '{tmp_path}/host file'", timeout=10
        )
        assert inside.stdout.strip() == b"/tmp:\n\n/workspace:"
        seen = (await other.exec("ls /; cat /etc/passwd", timeout=10)).stdout
        assert b"home" not in seen.split(b"root:x")[0]
        count = await other.exec("ls /proc | grep -c '^[0-9]*$'", timeout=10)
        assert int(count.stdout) <= 6


async def test_only_the_workspace_and_temporary_places_are_writable(jail: Sandbox) -> None:
    for place in (
        "/usr/x",
        "/usr/bin/bash",
        "/etc/ld.so.preload",
        "/etc/passwd",
        "/x",
        "/lib64/x",
        "/proc/sys/kernel/hostname",
    ):
        assert (await jail.exec(f"echo x > {place}", timeout=10)).exit_code != 0, place
    assert (await jail.exec("rm -f /lib64 /bin; ln -sfn /tmp /lib64; ls -d /lib64/", timeout=10)).stdout == b"/lib64/\n"
    for place in ("/workspace/x", "/tmp/x", "/dev/shm/x", "/dev/null"):
        assert (await jail.exec(f"echo x > {place}", timeout=10)).exit_code == 0, place


async def test_commands_have_no_capability_and_cannot_get_one(jail: Sandbox) -> None:
    status = (await jail.exec("cat /proc/self/status", timeout=10)).stdout.decode()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert [fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == ["0" * 16] * 4
    assert fields["NoNewPrivs"] == "1"
    assert fields["Uid"].split() == ["1000"] * 4
    assert fields["Gid"].split() == ["1000"] * 4
    assert fields["Groups"].strip() in {"", "1000", "65534"}


@pytest.mark.parametrize(
    "attempt",
    [
        "mount -t tmpfs x /tmp",
        "umount /tmp",
        "unshare --user true",
        "unshare --mount true",
        "unshare --map-root-user true",
        "nsenter --target=1 --mount true",
        "nsenter --target=1 --user true",
        "chroot / true",
        "chown 0 .",
        "cat /proc/1/environ",
        "cat /proc/1/mem",
        "echo > /proc/1/fd/0",
        "ls /proc/1/root/",
        "hostname other",
    ],
)
async def test_what_would_lead_out_is_refused(jail: Sandbox, attempt: str) -> None:
    assert (await jail.exec(attempt, timeout=10)).exit_code != 0


@pytest.mark.skipif(
    ctypes.CDLL(None).syscall(444, None, 0, 1) < 6, reason="NO LANDLOCK of version 6, which Linux has since 6.12"
)
async def test_abstract_sockets_of_the_host_are_out_of_reach_with_its_network(bubblewrap: BubblewrapBackend) -> None:
    name = f"hermes-rl-{secrets.token_hex(8)}"
    connect = f"import socket; socket.socket(socket.AF_UNIX).connect(chr(0) + '{name}')"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"\0{name}")
        listening.listen()
        async with await bubblewrap.start(SandboxSpec(network=True)) as jail:
            seen = await jail.exec(f'/usr/bin/python3 -c "{connect}"', timeout=30)
    assert b"Operation not permitted" in seen.stderr


async def test_files_can_be_moved_linked_and_cut_where_the_agent_may_write(jail: Sandbox) -> None:
    script = """
    mkdir a b; echo hello > a/x; mv a/x b/x; ln b/x a/hard; ln -s b/x soft; mkfifo pipe; truncate -s 2 b/x; mv b c
    perl -e 'rename "c/x", "a/renamed" or die $!'; rm soft pipe
    echo x > /dev/null; echo x > /dev/shm/x; echo x > /run/x
    (echo a; echo b) > >(cat > /tmp/redirected); cat a/renamed a/hard
    """
    result = await jail.exec(f"set -e\n{script}", timeout=30)
    assert (result.exit_code, result.stdout) == (0, b"hehe"), result.stderr.decode()


async def test_the_first_process_cannot_be_killed_from_inside(jail: Sandbox) -> None:
    await jail.exec("for s in $(seq 1 64); do kill -$s 1; kill -$s -- -1; done", timeout=10)
    assert await jail.alive()
    assert (await jail.exec("echo on", timeout=10)).stdout == b"on\n"


async def test_orphans_are_reaped(jail: Sandbox) -> None:
    # Until none is left, which a busy machine may take a while for; a warden that reaps nobody would leave fifty.
    reaped = "until ! grep -qs '^State:.*zombie' /proc/[0-9]*/status; do sleep 0.1; done"
    result = await jail.exec(f"for i in $(seq 50); do (true &) ; done; {reaped}", timeout=30)
    assert not result.timed_out


async def test_a_terminal_device_can_be_had(jail: Sandbox) -> None:
    result = await jail.exec("""python3 -c 'import pty; pty.spawn(["tty"])'""", timeout=10)
    assert result.stdout.strip() == b"/dev/pts/0"


async def test_a_command_has_no_controlling_terminal(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("exec 3</dev/tty", timeout=10)).exit_code != 0


async def test_a_link_to_a_host_file_leads_to_the_sandbox_only(jail: Sandbox) -> None:
    await jail.exec(
        "ln -s /etc/shadow answer; ln -s /etc/hostname name; ln -s /proc/1/root/etc/shadow root", timeout=10
    )
    for name in ("answer", "name", "root"):
        with pytest.raises((FileNotFoundError, PermissionError)):
            await jail.read(name)
    with pytest.raises(OSError, match="passwd"):
        await jail.write("/etc/passwd", b"x")


async def test_given_loader_variables_reach_only_the_command(jail: Sandbox) -> None:
    result = await jail.exec("/usr/bin/true", env={"LD_PRELOAD": "/workspace/none.so"}, timeout=10)
    assert result.stderr.count(b"none.so") == 2, "bash and the program it runs"
    assert b"LD_PRELOAD" not in (await jail.exec("env", timeout=10)).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give each sandbox a user of its own")
async def test_under_root_each_sandbox_has_a_user_of_its_own(bubblewrap: BubblewrapBackend) -> None:
    async with await bubblewrap.start() as one, await bubblewrap.start() as other:
        owners = set()
        for sandbox in (one, other):
            mine = nap()
            await sandbox.exec(f"{mine} &", timeout=10)
            owners.add(Path(f"/proc/{living(mine)[0]}").stat().st_uid)
        assert owners == {one.owner, other.owner}
        assert len(owners) == 2
        assert all(uid >= 2**15 for uid in owners)
