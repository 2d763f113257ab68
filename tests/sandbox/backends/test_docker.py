"""The backends `docker` and `podman` on a real dockerd, with runc and with gVisor, and on podman's service."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiodocker
import pytest

import hermes_rl
from hermes_rl.core.errors import ConfigError, SandboxError
from hermes_rl.sandbox.backends.docker import BAKED, DockerBackend, PodmanBackend
from hermes_rl.sandbox.backends.docker_api import OWNER_LABEL, SANDBOX_LABEL
from hermes_rl.sandbox.backends.registry import make_backend
from hermes_rl.sandbox.ledger import SandboxLedger, abandoned_ledgers
from hermes_rl.sandbox.protocol import Backend, Sandbox
from hermes_rl.sandbox.reaper import reap
from hermes_rl.sandbox.spec import Limits, SandboxSpec
from tests.sandbox.living import begun, living, nap
from tests.support.sandbox_parts import IMAGE, ContainerServer, DockerDaemon, Parts

SOURCE = Path(next(iter(hermes_rl.__path__))).parent
SMALL = Limits(memory_mb=256, disk_mb=32, processes=48)


@dataclass
class Engine:
    """A server, the backend that is tried on it, and its settings."""

    server: ContainerServer
    kind: type[DockerBackend]
    settings: dict[str, Any]
    ledgers: Path

    def make(self, **more: Any) -> DockerBackend:
        return self.kind(**{**self.settings, "ledger": SandboxLedger(self.ledgers), **more})

    async def containers(self) -> list[str]:
        return await asyncio.to_thread(self.server.containers)

    async def emptied(self) -> None:
        """Wait until there is no container: the engine removes those that end by themselves in its own time."""
        deadline = time.monotonic() + 20
        while left := await self.containers():
            assert time.monotonic() < deadline, left
            await asyncio.sleep(0.05)


@pytest.fixture(params=["docker", "podman", "runsc"])
async def engine(request: pytest.FixtureRequest, parts: Parts, tmp_path: Path) -> AsyncIterator[Engine]:
    if request.param == "runsc":
        request.getfixturevalue("runsc")
    podman = request.param == "podman"
    server: ContainerServer = request.getfixturevalue("podman_service" if podman else "docker_daemon")
    settings = {"url": server.url, "image": IMAGE} | ({"runtime": "runsc"} if request.param == "runsc" else {})
    engine = Engine(server, PodmanBackend if podman else DockerBackend, settings, tmp_path / "ledgers")
    yield engine
    await engine.emptied()


@pytest.fixture
async def backend(engine: Engine) -> AsyncIterator[DockerBackend]:
    backend = engine.make()
    yield backend
    await backend.close()
    assert not list(engine.ledgers.glob("*"))


only_docker = pytest.mark.parametrize("engine", ["docker"], indirect=True)
with_runc = pytest.mark.parametrize("engine", ["docker", "podman"], indirect=True)
only_gvisor = pytest.mark.parametrize("engine", ["runsc"], indirect=True)


async def ask(sandbox: Sandbox, command: str, **more: Any) -> str:
    result = await sandbox.exec(command, timeout=30, merge_stderr=True, **more)
    return result.stdout.decode().strip()


# --- what it is inside ---


async def test_the_probe_is_content(backend: DockerBackend) -> None:
    await backend.probe()


async def test_a_command_is_an_ordinary_user_without_capabilities(backend: DockerBackend) -> None:
    async with await backend.start() as sandbox:
        assert await ask(sandbox, "id -u; id -g; pwd; echo $HOME $USER") == "1000\n1000\n/workspace\n/workspace agent"
        capabilities = await ask(sandbox, "grep -E 'Cap(Inh|Prm|Eff)' /proc/self/status | cut -f2 | sort -u")
        assert capabilities == "0" * 16


async def test_only_the_workspace_and_temporary_places_are_writable(backend: DockerBackend) -> None:
    async with await backend.start() as sandbox:
        for place in ("/x", "/usr/bin/x", "/etc/x", "/home/x", "/run/x"):
            assert (await sandbox.exec(f"echo > {place}", timeout=20)).exit_code != 0, place
        for place in ("/workspace/x", "/tmp/x", "/dev/shm/x"):
            assert (await sandbox.exec(f"echo > {place}", timeout=20)).exit_code == 0, place


async def test_the_network_is_off(backend: DockerBackend) -> None:
    async with await backend.start() as sandbox:
        assert await ask(sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '") == "lo"
        assert (await sandbox.exec("exec 3<>/dev/tcp/192.0.2.1/80", timeout=20)).exit_code != 0


async def test_a_network_that_the_engine_has_not_got_is_a_config_error(docker_daemon: DockerDaemon) -> None:
    backend = DockerBackend(url=docker_daemon.url, image=IMAGE)
    with pytest.raises(ConfigError, match="a network"):
        await backend.start(SandboxSpec(network=True))


async def test_nothing_of_our_environment_is_visible(backend: DockerBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-this-must-never-be-seen")
    async with await backend.start(SandboxSpec(env={"GIVEN": "yes"})) as sandbox:
        seen = await ask(sandbox, "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'")
        assert "GIVEN=yes" in seen
        assert "never-be-seen" not in seen


async def test_nothing_of_the_host_is_mounted(backend: DockerBackend, engine: Engine) -> None:
    async with await backend.start() as sandbox:
        async with aiodocker.Docker(engine.server.url) as docker:
            about = (await docker.containers.get(sandbox.name))._container
        assert [mount for mount in about["Mounts"] if mount["Type"] != "tmpfs"] == []
        assert not about["HostConfig"]["Privileged"]


# --- limits ---


async def test_a_memory_hog_is_killed_and_the_sandbox_lives(backend: DockerBackend) -> None:
    async with await backend.start(SandboxSpec(limits=SMALL)) as sandbox:
        hog = "python3 -c 'x = bytearray(b\"x\") * (1500 << 20)'"
        assert (await sandbox.exec(f"{hog}", timeout=60)).exit_code == 137
        assert "Killed" in await ask(sandbox, f"for i in 1 2 3; do {hog} & done; wait")
        assert await ask(sandbox, "echo on") == "on"


async def test_a_fork_bomb_is_bounded_and_the_sandbox_lives(backend: DockerBackend) -> None:
    async with await backend.start(SandboxSpec(limits=SMALL)) as sandbox:
        count = "ls /proc | grep -c '^[0-9]'"
        bomb = await sandbox.exec("bomb() { bomb | bomb & }; bomb; sleep 600", timeout=2, max_output=1000)
        assert bomb.timed_out
        await sandbox.end_processes()
        assert int(await ask(sandbox, count)) < 8
        born = await sandbox.exec("for i in $(seq 100); do (echo >> born; sleep 600) & done", timeout=3)
        assert born.timed_out or born.exit_code != 0
        await sandbox.end_processes()
        assert 0 < int(await ask(sandbox, "wc -l < born")) <= 48


async def test_each_place_holds_no_more_than_the_disk_limit(backend: DockerBackend) -> None:
    async with await backend.start(SandboxSpec(limits=SMALL)) as sandbox:
        for place in ("/workspace", "/tmp"):
            full = await sandbox.exec(f"head -c 64M /dev/zero > {place}/fill", timeout=30)
            assert b"No space left" in full.stderr
            assert int(await ask(sandbox, f"stat -c %s {place}/fill; rm {place}/fill")) <= 32 << 20
        assert await ask(sandbox, "echo on") == "on"


# --- root, a writable root directory ---


@with_runc
async def test_root_can_neither_reach_nor_end_the_first_process(backend: DockerBackend) -> None:
    attempts = (
        "echo x > /proc/1/fd/1",
        "cat /proc/1/environ",
        "head -c 1 /proc/1/mem",
        "readlink /proc/1/fd/1",
        "ls /proc/1/root/",
        "python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(16, 1, 0, 0) != 0)'",
    )
    async with await backend.start(SandboxSpec(user="root")) as sandbox:
        for attempt in attempts:
            assert (await sandbox.exec(attempt, timeout=20)).exit_code != 0, attempt
        await sandbox.exec("for s in $(seq 1 64); do kill -$s 1; done", timeout=20)
        await sandbox.exec("kill -9 -- -1", timeout=20)
        assert await ask(sandbox, "id -u") == "0"


@with_runc
async def test_the_capabilities_of_root_are_fewer_than_those_of_the_first_process(backend: DockerBackend) -> None:
    async with await backend.start() as sandbox:
        of = "grep -h CapPrm /proc/{}/status | cut -f2"
        root = int(await ask(sandbox, of.format("self"), user="root"), 16)
        first = int(await ask(sandbox, of.format(1)), 16)
        assert first & ~root
        assert not root & ~first
        assert not root & (1 << 21 | 1 << 19 | 1 << 12 | 1 << 27), "SYS_ADMIN, SYS_PTRACE, NET_ADMIN, MKNOD"


@with_runc
async def test_root_works_on_files_of_every_owner_and_the_system_stays_read_only(backend: DockerBackend) -> None:
    async with await backend.start() as sandbox:
        await sandbox.exec("echo mine > mine; chmod 600 mine", timeout=20)
        assert await ask(sandbox, "cat mine; chown 0:0 mine && stat -c %u mine", user="root") == "mine\n0"
        assert "Read-only" in await ask(sandbox, "touch /usr/bin/x", user="root")


@only_gvisor
async def test_gvisor_admits_that_it_cannot_hold_root(backend: DockerBackend) -> None:
    with pytest.raises(ConfigError, match="the user root"):
        await backend.start(SandboxSpec(user="root"))
    async with await backend.start() as sandbox:
        with pytest.raises(ValueError, match="gVisor"):
            await sandbox.exec("true", timeout=10, user="root")


@with_runc
async def test_a_writable_root_directory_is_this_sandbox_own(backend: DockerBackend) -> None:
    spec = SandboxSpec(user="root", writable_root=True)
    async with await backend.start(spec) as one, await backend.start(spec) as other:
        await one.write("/usr/local/bin/hello", b"#!/bin/sh\necho hello\n")
        assert await ask(one, "chmod +x /usr/local/bin/hello; hello") == "hello"
        assert "not found" in await ask(other, "hello")


@with_runc
async def test_a_disk_limit_for_a_writable_root_directory_is_refused_where_it_cannot_be_held(
    backend: DockerBackend,
) -> None:
    with pytest.raises(ConfigError, match="disk_mb"):
        await backend.start(SandboxSpec(writable_root=True, limits=Limits(disk_mb=64)))


# --- images ---


async def derived(engine: Engine, name: str, *changes: str) -> str:
    """An image of ours with something changed, as a Dockerfile would say it."""
    async with aiodocker.Docker(engine.server.url) as docker:
        container = await docker.containers.create({"Image": IMAGE, "Cmd": ["true"]})
        try:
            await container.commit(repository=name, tag="local", changes=changes, config={})
        finally:
            await container.delete(force=True)
    return f"{name}:local"


async def test_the_variables_of_the_image_reach_commands_below_ours(backend: DockerBackend, engine: Engine) -> None:
    image = await derived(
        engine, "variables", "ENV FLAVOUR=vanilla", "ENV HOME=/nowhere", "ENV PATH=/opt/x:/usr/bin:/bin"
    )
    async with await backend.start(SandboxSpec(image=image, env={"MORE": "1"})) as sandbox:
        seen = await ask(sandbox, "echo $FLAVOUR $HOME $PATH $LANG $MORE")
        assert seen == "vanilla /workspace /opt/x:/usr/bin:/bin C.UTF-8 1"


async def test_the_habits_of_an_image_are_put_aside(backend: DockerBackend, engine: Engine) -> None:
    image = await derived(
        engine, "habits", 'ENTRYPOINT ["/bin/false"]', "USER 1234", "WORKDIR /srv", "VOLUME /data", 'CMD ["no"]'
    )
    async with await backend.start(SandboxSpec(image=image, limits=SMALL)) as sandbox:
        assert await ask(sandbox, "id -u; pwd") == "1000\n/workspace"
        assert await ask(sandbox, "grep ' /data ' /proc/mounts | cut -d' ' -f3") == "tmpfs"


async def test_an_image_without_perl_says_what_it_needs(backend: DockerBackend, engine: Engine) -> None:
    image = await derived(engine, "bare", "ENV PATH=/nowhere")
    with pytest.raises(SandboxError, match="perl") as bare:
        await backend.start(SandboxSpec(image=image))
    assert bare.value.cause == "start"
    assert await engine.containers() == []


async def test_an_image_that_cannot_be_had_says_what_to_do(backend: DockerBackend) -> None:
    said: list[str] = []
    with pytest.raises(SandboxError, match=r"127\.0\.0\.1:1/none:1 and cannot pull it: .*pull 127") as missing:
        await backend.prepare(SandboxSpec(image="127.0.0.1:1/none:1"), said.append)
    assert missing.value.cause == "start"
    assert said == ["127.0.0.1:1/none:1: pulling"]


async def test_what_the_setup_did_is_there_in_every_sandbox(backend: DockerBackend) -> None:
    spec = SandboxSpec(
        files={"in/data.txt": "data", "/opt/tool": "#!/bin/sh\necho tool\n"},
        setup="id -u > who; chmod 755 /opt/tool; cp in/data.txt /usr/share/copy; ln -s in/data.txt link; touch /tmp/x",
        network=False,
    )
    for _ in range(2):
        async with await backend.start(spec) as sandbox:
            assert await ask(sandbox, "cat who link /usr/share/copy; echo; /opt/tool") == "0\ndatadata\ntool"
            assert await ask(sandbox, "stat -c %u who in/data.txt .; ls /tmp") == "1000\n1000\n1000"
            await ask(sandbox, "echo more > in/more; rm who")
    async with await backend.start(spec) as sandbox:
        assert (await sandbox.exec("test -e in/more", timeout=20)).exit_code == 1


async def baked(engine: Engine) -> set[str]:
    async with aiodocker.Docker(engine.server.url) as docker:
        tags = [tag for image in await docker.images.list() for tag in image["RepoTags"] or ()]
    return {tag for tag in tags if BAKED in tag}


async def test_the_same_content_is_baked_once(backend: DockerBackend, engine: Engine) -> None:
    before = await baked(engine)
    said: list[str] = []
    specs = [SandboxSpec(setup=f"# {engine.ledgers}\necho done > done", network=False) for _ in range(4)]
    await asyncio.gather(*(backend.prepare(spec, said.append) for spec in specs))
    assert len(said) == 1
    assert len(await baked(engine) - before) == 1
    await engine.make().prepare(specs[0], said.append)
    assert len(said) == 1


@only_docker
async def test_a_name_that_was_given_to_another_image_is_baked_again(backend: DockerBackend, engine: Engine) -> None:
    said: list[str] = []
    for flavour in ("vanilla", "cherry"):
        image = await derived(engine, "moving", f"ENV FLAVOUR={flavour}")
        spec = SandboxSpec(image=image, setup='echo "$FLAVOUR" > flavour', network=False)
        await backend.prepare(spec, said.append)
        async with await backend.start(spec) as sandbox:
            assert await sandbox.read("flavour") == f"{flavour}\n".encode()
    assert len(said) == 2


async def test_files_alone_need_no_baking(backend: DockerBackend, engine: Engine) -> None:
    before = await baked(engine)
    async with await backend.start(SandboxSpec(files={"a/b": b"\0\xff"})) as sandbox:
        assert await sandbox.read("a/b") == b"\0\xff"
    assert await baked(engine) == before


async def test_a_setup_that_fails_is_told_with_its_output(backend: DockerBackend, engine: Engine) -> None:
    before = await baked(engine)
    with pytest.raises(SandboxError, match=r"ended with 3: .*no such luck") as failed:
        await backend.prepare(SandboxSpec(setup="echo no such luck >&2; exit 3", network=False), print)
    assert failed.value.cause == "setup"
    assert await baked(engine) == before
    assert await engine.containers() == []


# --- when things fail ---


async def test_an_engine_that_is_not_there_is_told_with_the_next_step(tmp_path: Path) -> None:
    for kind, name in ((DockerBackend, "DOCKER_HOST"), (PodmanBackend, "CONTAINER_HOST")):
        with pytest.raises(SandboxError, match=rf"{tmp_path}/none.*Is it running.*{name}") as away:
            await kind(url=f"unix://{tmp_path}/none").start()
        assert away.value.cause == "start"


async def test_where_an_engine_listens_is_taken_from_its_own_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    monkeypatch.setenv("CONTAINER_HOST", "ftp://nowhere")
    with pytest.raises(SandboxError, match=r"docker at tcp://127\.0\.0\.1:1"):
        await DockerBackend().start()
    with pytest.raises(ConfigError, match="ftp://nowhere"):
        await PodmanBackend().start()


@only_docker
async def test_a_runtime_that_the_engine_has_not_got_is_a_config_error(engine: Engine) -> None:
    with pytest.raises(ConfigError, match=r"no runtime 'none-such', only .*runc"):
        await engine.make(runtime="none-such").start()


async def test_a_container_that_is_killed_says_so(backend: DockerBackend, engine: Engine) -> None:
    async with await backend.start() as sandbox:
        running = asyncio.ensure_future(sandbox.exec("touch begun; sleep 600", timeout=60))
        await begun(sandbox)
        async with aiodocker.Docker(engine.server.url) as docker:
            await docker.containers.container(sandbox.name).kill()
        with pytest.raises(SandboxError) as death:
            await running
        assert death.value.cause == "died"
        assert not await sandbox.alive()


@pytest.mark.parametrize("how", ["restart", "kill"])
async def test_an_engine_that_goes_in_mid_rollout_leaves_nothing(
    backend: DockerBackend, engine: Engine, how: str
) -> None:
    mine = nap()
    sandboxes = [await backend.start() for _ in range(2)]
    running = [asyncio.ensure_future(sandbox.exec(f"touch begun; {mine}", timeout=60)) for sandbox in sandboxes]
    for sandbox in sandboxes:
        await begun(sandbox)
    await asyncio.to_thread(getattr(engine.server, how))
    for one in running:
        with pytest.raises(SandboxError) as death:
            await one
        assert death.value.cause == "died"
    await sandboxes[0].close()
    if how == "kill":
        await asyncio.to_thread(engine.server.start)
    await sandboxes[1].close()
    async with await backend.start() as again:
        assert await ask(again, "echo on") == "on"
    await engine.emptied()
    assert living(mine) == []


@only_docker
async def test_a_start_that_hangs_is_given_up_and_leaves_nothing(engine: Engine) -> None:
    # The probe starts a container too, on a busy machine in more than a second.
    backend = engine.make(start_timeout=5.0)
    await backend.probe()
    os.kill(engine.server.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(SandboxError) as late:
            await backend.start()
        assert late.value.cause == "start_timeout"
        assert time.monotonic() - began < 20
    finally:
        os.kill(engine.server.pid, signal.SIGCONT)
    await backend.close()
    await engine.emptied()


async def test_a_first_process_that_never_answers_is_given_up(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_rl.sandbox.backends.docker.PROGRAM", "sleep 600")
    with pytest.raises(SandboxError) as late:
        await engine.make(start_timeout=2.0).start()
    assert late.value.cause == "start_timeout"
    assert await engine.containers() == []


async def test_a_cancelled_start_leaves_nothing(backend: DockerBackend, engine: Engine) -> None:
    await backend.probe()
    for milliseconds in range(0, 400, 40):
        starting = asyncio.ensure_future(backend.start())
        await asyncio.sleep(milliseconds / 1000)
        starting.cancel()
        try:
            await (await starting).close()
        except asyncio.CancelledError:
            assert await engine.containers() == []


OWNER = """
    import asyncio, json, sys
    from hermes_rl.sandbox.backends.registry import make_backend

    async def main(name, settings, count, nap):
        backend = make_backend(name, json.loads(settings))
        sandboxes = await asyncio.gather(*(backend.start() for _ in range(int(count))))
        for sandbox in sandboxes:
            await sandbox.exec(f"setsid {nap} & (env -i setsid {nap} &)", timeout=60)
        print("ready", flush=True)
        await asyncio.sleep(600)

    asyncio.run(main(*sys.argv[1:]))
"""


async def killed_owner(engine: Engine, home: Path, count: int) -> None:
    """A process that started sandboxes and was killed."""
    words = [
        sys.executable,
        "-c",
        textwrap.dedent(OWNER),
        engine.kind.name,
        json.dumps(engine.settings),
        str(count),
        nap(),
    ]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "HERMES_HOME": str(home)}
    owner = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, env=environment)
    assert owner.stdout is not None
    assert await owner.stdout.readline() == b"ready\n"
    assert len(await engine.containers()) == count
    owner.kill()
    await owner.wait()


async def test_the_containers_of_a_killed_owner_end_and_the_reaper_finds_nothing(
    engine: Engine, tmp_path: Path
) -> None:
    await killed_owner(engine, tmp_path, 3)
    await engine.emptied()
    reaped = await reap(tmp_path / "rl" / "sandboxes")
    assert (reaped.owners, len(reaped.removed), reaped.left) == (1, 3, [])
    assert not list((tmp_path / "rl" / "sandboxes").glob("*"))


async def test_a_container_that_was_made_and_never_started_is_reaped(engine: Engine, tmp_path: Path) -> None:
    name = "hermes-rl-0123456789abcdef"
    settings = {"url": engine.server.url}
    async with aiodocker.Docker(engine.server.url) as docker:
        await docker.containers.create(
            {"Image": IMAGE, "Cmd": ["true"], "Labels": {SANDBOX_LABEL: name, OWNER_LABEL: "dead"}}, name=name
        )
    fresh: Backend = make_backend(engine.kind.name, settings)
    for _ in range(2):
        await fresh.reap({"container": name})
        assert await engine.containers() == []


async def test_a_container_of_somebody_else_is_never_removed(engine: Engine) -> None:
    name = "hermes-rl-fedcba9876543210"
    async with aiodocker.Docker(engine.server.url) as docker:
        other = await docker.containers.create({"Image": IMAGE, "Cmd": ["true"]}, name=name)
        try:
            await engine.make().reap({"container": name})
            assert await engine.containers() == [other.id]
        finally:
            await other.delete(force=True)


@only_docker
async def test_what_could_not_be_removed_stays_in_the_ledger_for_the_reaper(engine: Engine, tmp_path: Path) -> None:
    await killed_owner(engine, tmp_path, 1)
    await asyncio.to_thread(engine.server.stop)
    try:
        away = await reap(tmp_path / "rl" / "sandboxes")
        assert (len(away.removed), len(away.left)) == (0, 1)
        assert "cannot reach docker" in away.left[0][1]
    finally:
        await asyncio.to_thread(engine.server.start)
    assert len((await reap(tmp_path / "rl" / "sandboxes")).removed) == 1
    assert list(abandoned_ledgers(tmp_path / "rl" / "sandboxes")) == []


@only_docker
async def test_a_forked_worker_does_not_keep_a_sandbox_alive(backend: DockerBackend) -> None:
    async with await backend.start() as sandbox:
        stream = sandbox._transport.descriptor()
        assert stream is not None
        worker = os.fork()
        if worker == 0:
            try:
                os.fstat(stream)
            except OSError:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == 0
        assert await ask(sandbox, "echo on") == "on"


# --- many, and fast ---


@only_docker
async def test_a_backend_holds_no_connection_when_it_has_no_sandbox(backend: DockerBackend) -> None:
    async with await backend.start():
        client = backend._shared.engine._docker
        assert client is not None
        assert client.connector.limit == 0
    assert backend._shared.engine._docker is None
    assert client.connector.closed


@pytest.mark.slow
@with_runc
async def test_fifty_containers_answer_side_by_side(backend: DockerBackend) -> None:
    turns = asyncio.Semaphore(8)

    async def start() -> Sandbox:
        async with turns:
            return await backend.start(SandboxSpec(limits=SMALL))

    sandboxes = await asyncio.gather(*(start() for _ in range(50)))
    answers = await asyncio.gather(*(ask(one, f"echo {number}") for number, one in enumerate(sandboxes)))
    assert answers == [str(number) for number in range(50)]
