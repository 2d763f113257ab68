"""The backend `ssh` on a real sshd with the limits it has by default, as a user who is not root over there."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hermes_rl
from hermes_rl.core.errors import ConfigError, SandboxError
from hermes_rl.sandbox.backends.registry import make_backend
from hermes_rl.sandbox.backends.ssh import SshBackend, SshSandbox
from hermes_rl.sandbox.ledger import SandboxLedger
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.protocol import Backend
from hermes_rl.sandbox.reaper import reap
from hermes_rl.sandbox.spec import SandboxSpec
from tests.sandbox.living import arguments, living, nap
from tests.support.sandbox_parts import Server, SshServer

SOURCE = Path(next(iter(hermes_rl.__path__))).parent


def settings(server: SshServer) -> dict[str, Any]:
    return {
        "host": server.host,
        "port": server.port,
        "username": server.username,
        "key": str(server.key),
        "known_hosts": str(server.known_hosts),
        "directory": str(server.home),
    }


@pytest.fixture
async def make(ssh_server: SshServer, tmp_path: Path) -> AsyncIterator[Callable[..., SshBackend]]:
    made: list[SshBackend] = []

    def make(**more: Any) -> SshBackend:
        made.append(SshBackend(**{**settings(ssh_server), "ledger": SandboxLedger(tmp_path / "ledger"), **more}))
        return made[-1]

    yield make
    for backend in made:
        await backend.close()


@pytest.fixture
def ssh(make: Callable[..., SshBackend]) -> SshBackend:
    return make()


def left_in(server: SshServer) -> list[Path]:
    return list(server.home.glob("hermes-rl-*"))


def wardens(sandbox: SshSandbox) -> list[int]:
    """The warden and the keepers of its commands, the warden first."""
    mine = f"hermes-rl-sandbox\0{sandbox._directory}\0".encode()
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit() and arguments(int(name)).endswith(mine))


def sessions(server: SshServer) -> set[int]:
    """The processes that serve connections, without the one that listens."""
    return server.connections() - {server.pid}


async def until(true: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.02)


async def test_commands_run_in_a_private_directory_over_there(ssh: SshBackend, ssh_server: SshServer) -> None:
    async with await ssh.start() as sandbox:
        told = await sandbox.exec("id -un; pwd; stat -c %a . .. $OLDPWD/../scratch; umask", timeout=20)
        workspace = sandbox.workspace
        assert told.stdout.decode().split() == ["sandbox", workspace, "700", "700", "700", "0022"]
        assert Path(workspace).parent.parent == ssh_server.home
    assert left_in(ssh_server) == []


async def test_files_of_many_megabytes_travel_both_ways(ssh: SshBackend, tmp_path: Path) -> None:
    sent, received = tmp_path / "sent", tmp_path / "received"
    sent.write_bytes(os.urandom(30_000_000))
    async with await ssh.start() as sandbox:
        assert await sandbox.upload(sent, "blob") == 30_000_000
        assert await sandbox.download("blob", received) == 30_000_000
        # Nobody takes this; it must not pile up on its way either.
        assert (await sandbox.exec("sleep 1", stdin=sent.read_bytes(), timeout=20)).exit_code == 0
    assert sent.read_bytes() == received.read_bytes()


async def test_nothing_of_ours_and_of_the_login_is_visible(ssh: SshBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/nonexistent/agent")
    monkeypatch.setenv("LC_SECRET", "sk-secret")
    async with await ssh.start() as sandbox:
        seen = await sandbox.exec("env; cat /proc/$PPID/environ", timeout=20)
        names = {line.split("=")[0] for line in seen.stdout.decode().replace("\0", "\n").splitlines()}
    assert names <= {"HOME", "LANG", "OLDPWD", "PATH", "PWD", "SHLVL", "TERM", "USER", "_"}


async def test_a_login_shell_that_prints_is_no_trouble(ssh: SshBackend, ssh_server: SshServer) -> None:
    chatty = ssh_server.home / ".bashrc"
    chatty.write_text("echo welcome; echo again >&2; export TMPDIR=/nonexistent\n")
    try:
        async with await ssh.start() as sandbox:
            assert (await sandbox.exec("echo only me", timeout=20)).stdout == b"only me\n"
    finally:
        chatty.unlink()


async def test_what_runs_out_of_time_is_dead_over_there(ssh: SshBackend) -> None:
    mine = nap()
    async with await ssh.start() as sandbox:
        result = await sandbox.exec(f"setsid {mine} & (env -i setsid {mine} &) ; {mine}", timeout=1)
        assert result.timed_out
        assert living(mine) == []


async def test_ended_processes_are_dead_and_the_files_stay(ssh: SshBackend) -> None:
    mine = nap()
    async with await ssh.start() as sandbox:
        await sandbox.exec(f"echo kept > file; setsid {mine} & (env -i setsid {mine} &)", timeout=20)
        await until(lambda: len(living(mine)) == 2)
        await sandbox.end_processes()
        assert living(mine) == []
        assert await sandbox.read("file") == b"kept\n"


async def test_closing_ends_processes_and_removes_what_the_policy_locked(
    ssh: SshBackend, ssh_server: SshServer
) -> None:
    mine = nap()
    async with await ssh.start() as sandbox:
        await sandbox.exec(f"setsid {mine} & mkdir -p a/b; echo > a/b/c; chmod 0 a/b; chmod 0 a; chmod 0 .", timeout=20)
        await until(lambda: len(living(mine)) == 1)
    assert living(mine) == []
    assert left_in(ssh_server) == []


async def test_files_and_setup_of_a_spec_are_laid_out(ssh: SshBackend) -> None:
    spec = SandboxSpec(files={"given": b"data\n"}, setup="cat given > made", env={"MARK": "set"})
    async with await ssh.start(spec) as sandbox:
        assert (await sandbox.exec("cat made; echo $MARK", timeout=20)).stdout == b"data\nset\n"


async def test_a_file_outside_the_workspace_is_refused(ssh: SshBackend) -> None:
    with pytest.raises(ConfigError, match="outside the workspace"):
        await ssh.start(SandboxSpec(files={"/opt/file": b""}))


async def test_a_limit_that_it_cannot_hold_is_refused_and_it_calls_itself_no_sandbox(ssh: SshBackend) -> None:
    with pytest.raises(ConfigError, match="switching the network off"):
        await ssh.start(SandboxSpec(network=False))
    can = ssh.capabilities
    assert not (can.isolates_files or can.isolates_processes or can.network_off or can.limits)
    assert isinstance(ssh, Backend)


async def test_fifty_sandboxes_live_on_a_server_that_takes_ten_sessions_a_connection(
    ssh: SshBackend, ssh_server: SshServer
) -> None:
    pool = SandboxPool(ssh, max_live=50, max_starting=50)
    together = asyncio.Barrier(50)

    async def rollout(number: int) -> bytes:
        async with pool.sandbox() as sandbox:
            await sandbox.write("me", str(number).encode())
            await together.wait()
            return await sandbox.read("me")

    assert await asyncio.gather(*(rollout(number) for number in range(50))) == [str(n).encode() for n in range(50)]
    assert pool.start_failures == {}
    assert left_in(ssh_server) == []
    # One process for the login and one for the user each. A session that the server has not forgotten yet makes a
    # connection seem full, and costs one more.
    assert 10 <= len(sessions(ssh_server)) <= 12


@pytest.mark.parametrize("loop", [asyncio.new_event_loop])
def test_the_other_event_loop_does_too(loop: Callable[[], asyncio.AbstractEventLoop], ssh_server: SshServer) -> None:
    async def main() -> None:
        backend = make_backend("ssh", settings(ssh_server))
        async with await backend.start() as sandbox:
            data = os.urandom(3_000_000)
            await sandbox.write("blob", data)
            assert await sandbox.read("blob") == data
        await backend.close()

    with tempfile.TemporaryDirectory() as home, pytest.MonkeyPatch.context() as patched:
        patched.setenv("HERMES_HOME", home)
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(main())


# --- lost connections ---


async def test_a_restarted_sshd_leaves_its_sandboxes_alone(ssh: SshBackend, ssh_server: SshServer) -> None:
    async with await ssh.start() as sandbox:
        running = asyncio.ensure_future(sandbox.exec("sleep 1; echo done", timeout=20))
        # Not `ssh_server.stop`, which ends the connections too.
        await asyncio.to_thread(Server.stop, ssh_server)
        await asyncio.to_thread(ssh_server.start)
        assert (await running).stdout == b"done\n"
        async with await ssh.start() as other:
            assert (await other.exec("echo me too", timeout=20)).stdout == b"me too\n"


async def test_a_killed_connection_is_a_death_that_leaves_nothing_over_there(
    ssh: SshBackend, ssh_server: SshServer, tmp_path: Path
) -> None:
    mine = nap()
    sandbox = await ssh.start()
    running = asyncio.ensure_future(sandbox.exec(f"setsid {mine} & {mine}", timeout=60))
    await until(lambda: len(living(mine)) == 2)
    for pid in sessions(ssh_server):
        # One that is the child of another ends with it.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with pytest.raises(SandboxError, match="connection was lost") as death:
        await running
    assert death.value.cause == "died"
    assert not await sandbox.alive()
    await until(lambda: not living(mine) and not left_in(ssh_server))
    await sandbox.close()
    assert list((tmp_path / "ledger").iterdir()) == []
    async with await ssh.start() as next_one:
        assert (await next_one.exec("echo again", timeout=20)).stdout == b"again\n"


async def test_a_warden_killed_by_the_policy_is_a_death_and_closing_sees_to_the_rest(
    ssh: SshBackend, ssh_server: SshServer
) -> None:
    mine = nap()
    sandbox = await ssh.start()
    await sandbox.exec(f"setsid {mine} & (cd / && env -i setsid {mine} &)", timeout=20)
    await until(lambda: len(living(mine)) == 2)
    with pytest.raises(SandboxError) as death:
        await sandbox.exec(f"kill -9 {wardens(sandbox)[0]}; sleep 10", timeout=20)
    assert death.value.cause == "died"
    await sandbox.close()
    assert living(mine) == []
    assert left_in(ssh_server) == []


async def test_a_frozen_connection_ends_the_sandbox_on_both_sides(
    make: Callable[..., SshBackend], ssh_server: SshServer
) -> None:
    mine = nap()
    sandbox = await make(lease=2.0).start()
    running = asyncio.ensure_future(sandbox.exec(f"setsid {mine} & {mine}", timeout=60))
    await until(lambda: len(living(mine)) == 2)
    frozen = sessions(ssh_server)
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(SandboxError) as death:
            await running
        assert death.value.cause == "died"
        await until(lambda: not living(mine) and not left_in(ssh_server))
        await sandbox.close()
    finally:
        for pid in frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def test_a_quiet_sandbox_keeps_its_lease(make: Callable[..., SshBackend]) -> None:
    # A busy machine renews it late.
    async with await make(lease=3.0).start() as sandbox:
        assert (await sandbox.exec("sleep 4; echo still here", timeout=20)).stdout == b"still here\n"
        await asyncio.sleep(4)
        assert (await sandbox.exec("echo and here", timeout=20)).stdout == b"and here\n"


async def test_what_cannot_be_removed_now_stays_in_the_ledger(
    make: Callable[..., SshBackend], ssh_server: SshServer, tmp_path: Path
) -> None:
    sandbox = await make().start()
    await asyncio.to_thread(ssh_server.stop)
    try:
        await sandbox.close()
        assert len(list((tmp_path / "ledger").iterdir())) == 1
    finally:
        await asyncio.to_thread(ssh_server.start)


# --- owners that die, and the reaper ---

OWNER = """
    import asyncio, os, sys, time
    from hermes_rl.sandbox.backends.registry import make_backend

    async def main(settings, count, nap, fork):
        backend = make_backend("ssh", eval(settings))
        sandboxes = await asyncio.gather(*(backend.start() for _ in range(int(count))))
        for sandbox in sandboxes:
            await sandbox.exec(f"echo kept > file; setsid {nap} & (env -i setsid {nap} &)", timeout=20)
        if fork and os.fork() == 0:
            time.sleep(600)
        print("ready", flush=True)
        await asyncio.sleep(600)

    asyncio.run(main(*sys.argv[1:]))
"""


@contextlib.contextmanager
def owner(server: SshServer, home: Path, count: int, mine: str, fork: str = "") -> "Iterator[subprocess.Popen[bytes]]":
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER), repr(settings(server)), str(count), mine, fork],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "HERMES_HOME": str(home)},
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.stdout.close()
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
async def test_fifty_sandboxes_of_a_killed_owner_leave_nothing(ssh_server: SshServer, tmp_path: Path) -> None:
    mine = nap()
    with owner(ssh_server, tmp_path, 50, mine) as dying:
        await until(lambda: len(living(mine)) == 100)
        assert len(left_in(ssh_server)) == 50
        dying.kill()
        dying.wait()
        reaped = await reap(tmp_path / "rl" / "sandboxes")
        assert (reaped.owners, len(reaped.removed), reaped.left) == (1, 50, [])
        assert living(mine) == []
        assert left_in(ssh_server) == []
        assert list((tmp_path / "rl" / "sandboxes").iterdir()) == []


async def test_a_worker_that_the_owner_forked_does_not_keep_its_sandboxes(
    ssh_server: SshServer, tmp_path: Path
) -> None:
    mine = nap()
    with owner(ssh_server, tmp_path, 1, mine, fork="yes") as dying:
        await until(lambda: len(living(mine)) == 2)
        dying.kill()
        await until(lambda: not living(mine) and not left_in(ssh_server))


async def test_reaping_kills_what_a_killed_warden_left_and_nothing_else(ssh: SshBackend, ssh_server: SshServer) -> None:
    mine, others = nap(), nap()
    async with await ssh.start() as other:
        await other.exec(f"setsid {others} &", timeout=20)
        sandbox = await ssh.start()
        await sandbox.exec(f"setsid {mine} & (env -i setsid {mine} &)", timeout=20)
        await until(lambda: len(living(mine)) == 2)
        os.kill(wardens(sandbox)[0], signal.SIGKILL)
        resources = {"directory": sandbox._directory}
        await ssh.reap(resources)
        await ssh.reap(resources)
        assert living(mine) == []
        assert len(living(others)) == 1
        assert left_in(ssh_server) == [Path(other._directory)]
        await sandbox.close()


async def test_a_directory_that_is_no_sandboxs_is_not_removed(ssh: SshBackend, ssh_server: SshServer) -> None:
    precious = ssh_server.home / "precious"
    precious.mkdir()
    with pytest.raises(SandboxError, match="not a sandbox directory"):
        await ssh.reap({"directory": str(precious)})
    assert precious.exists()
    precious.rmdir()


async def test_a_cancelled_start_leaves_nothing(ssh: SshBackend, ssh_server: SshServer, tmp_path: Path) -> None:
    for milliseconds in range(0, 200, 10):
        starting = asyncio.ensure_future(ssh.start())
        await asyncio.sleep(milliseconds / 1000)
        starting.cancel()
        for started in await asyncio.gather(starting, return_exceptions=True):
            if isinstance(started, SshSandbox):
                await started.close()
            else:
                assert isinstance(started, asyncio.CancelledError)
    await until(lambda: not left_in(ssh_server))
    assert list((tmp_path / "ledger").glob("*")) == []
    async with await ssh.start() as sandbox:
        assert len(wardens(sandbox)) == 1


# --- what a user can fix ---


async def refusal(backend: SshBackend) -> SandboxError:
    with pytest.raises(SandboxError) as refused:
        await backend.start()
    return refused.value


async def test_a_wrong_key_is_told_with_the_next_step(make: Callable[..., SshBackend], tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", wrong], check=True)
    error = await refusal(make(key=wrong))
    assert error.cause == "start"
    assert "`key`" in str(error)


async def test_a_missing_key_is_told_with_the_next_step(make: Callable[..., SshBackend], tmp_path: Path) -> None:
    error = await refusal(make(key=tmp_path / "nothing"))
    assert error.cause == "start"
    assert "`key`" in str(error) and "nothing" in str(error)


@pytest.mark.parametrize(
    "known", ["", "{host} ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"]
)
async def test_an_unknown_or_changed_host_key_is_never_accepted(
    known: str, make: Callable[..., SshBackend], ssh_server: SshServer, tmp_path: Path
) -> None:
    (tmp_path / "known").write_text(known.format(host=f"[{ssh_server.host}]:{ssh_server.port}"))
    error = await refusal(make(known_hosts=tmp_path / "known"))
    assert error.cause == "start"
    assert "fingerprint" in str(error)


async def test_the_users_settings_for_ssh_cannot_switch_the_host_key_check_off(
    make: Callable[..., SshBackend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("UserKnownHostsFile none\nForwardAgent yes\n")
    assert "fingerprint" in str(await refusal(make(known_hosts=None)))


async def test_a_port_where_nobody_listens_is_told(make: Callable[..., SshBackend]) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        error = await refusal(make(port=nobody.getsockname()[1]))
    assert error.cause == "start"
    assert "`port`" in str(error)


async def test_a_server_that_says_nothing_is_given_up_in_time(make: Callable[..., SshBackend]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = await refusal(make(port=silent.getsockname()[1], start_timeout=0.5))
    assert error.cause == "start_timeout"


async def test_all_who_wait_for_a_server_that_says_nothing_wait_once(
    make: Callable[..., SshBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_rl.sandbox.backends.ssh_connections._CONNECT_TIME", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        backend = make(port=silent.getsockname()[1])
        began = time.monotonic()
        errors = await asyncio.gather(*(refusal(backend) for _ in range(10)))
    assert {error.cause for error in errors} == {"start_timeout"}
    assert time.monotonic() - began < 5


async def test_a_directory_that_cannot_be_used_is_told(make: Callable[..., SshBackend]) -> None:
    error = await refusal(make(directory="/root/nowhere"))
    assert error.cause == "start"
    assert "/root/nowhere" in str(error) and "`directory`" in str(error)


def test_a_backend_without_a_host_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="host"):
        make_backend("ssh")
