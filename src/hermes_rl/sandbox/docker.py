"""Backends `docker` and `podman`: one container a sandbox, reached over one attach stream; gVisor by `runtime="runsc"`.

Always true: the container has no network unless asked for, no file or variable of the host, a root directory that
cannot be written unless asked for, and the few capabilities that its warden needs, of which a command has none, or as
root not all. It ends with our process, and the engine removes it then.
"""

import asyncio
import hashlib
import json
import logging
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aiodocker import DockerError
from aiodocker.containers import DockerContainer

from hermes_rl.errors import ConfigError, SandboxError
from hermes_rl.sandbox.attached import AttachedWarden
from hermes_rl.sandbox.engine import OWNER_LABEL, SANDBOX_LABEL, Engine, docker_url, podman_url
from hermes_rl.sandbox.layout import Image, files_outside, lay_out
from hermes_rl.sandbox.ledger import Ledger
from hermes_rl.sandbox.protocol import WORKSPACE, Command
from hermes_rl.sandbox.spec import AGENT, DEFAULT_LIMITS, ROOT, Capabilities, Limits, SandboxSpec, settled
from hermes_rl.sandbox.warden import AGENT_ID, PROGRAM, WardenSandbox, base_environment, container_ids

_log = logging.getLogger(__name__)

IMAGE = "debian:12-slim"
START_TIMEOUT = 60.0
BAKED = "hermes-rl/baked"

_MB = 1024 * 1024
_SMALL_MB = 64
# For gVisor itself, and for what can be taken before the warden sees it.
_GVISOR_MB = 512
_PROBE_TIMEOUT = 20.0
_COPY_TIMEOUT = 120.0
# For a layer of an image to show progress, and for the engine to write a baked one.
_PULL_SILENCE = 120.0
_COMMIT_TIMEOUT = 300.0
# For a container that is no longer wanted to be made, and for a start that failed to be cleared away.
_LATE_CREATE = 5.0
_CLEAR_TIME = 5.0
# Where a baked image keeps the workspace, which is a fresh tmpfs in every sandbox.
_BAKED_WORKSPACE = "/hermes-rl/workspace"
# To become the command's user, to kill, and to withhold the last two from root's commands: one whose capabilities are
# fewer than the warden's can neither trace it nor reach its descriptors. Writing an audit record is not missed.
_WARDEN_NEEDS = ("SETUID", "SETGID", "KILL", "SETPCAP", "AUDIT_WRITE")
_WITHHELD = "8 29"
# What root's commands need to install packages and to work on files of any owner.
_ROOT_NEEDS = ("CHOWN", "DAC_OVERRIDE", "FOWNER")
# podman asks for more than a root without CAP_SYS_RESOURCE may give.
_PODMAN_LIMITS = {"nofile": 16384, "nproc": 16384}


class DockerBackend:
    """Containers of a docker engine. `image` is for a spec that names none; it needs bash and perl."""

    name = "docker"

    def __init__(
        self,
        *,
        url: str | None = None,
        runtime: str | None = None,
        image: str | None = None,
        start_timeout: float = START_TIMEOUT,
        ledger: Ledger | None = None,
    ) -> None:
        engine = Engine(self.name, url or self._default_url(), answer_time=start_timeout)
        self._shared = _Shared(engine, runtime, ledger or Ledger())
        self._image = image or IMAGE
        self._start_timeout = start_timeout
        self._baking: dict[str, asyncio.Lock] = {}
        # Until the engine was asked.
        self.capabilities = Capabilities(
            isolates_files=True,
            isolates_processes=True,
            network_off=True,
            network_on=True,
            limits=frozenset(Limits.__dataclass_fields__),
            images=True,
            root_user=not is_gvisor(runtime or ""),
            writable_root=not is_gvisor(runtime or ""),
            folders=engine.url.startswith("unix:"),
        )

    @staticmethod
    def _default_url() -> str:
        return docker_url()

    async def probe(self) -> None:
        async with await self.start() as sandbox:
            result = await sandbox.exec("id -u", timeout=_PROBE_TIMEOUT)
        if result.stdout != f"{AGENT_ID}\n".encode():
            said = result.stderr.decode(errors="replace").strip()
            raise SandboxError("start", f"a container of {self.name} started but cannot run commands: {said}")

    async def prepare(self, spec: SandboxSpec, say: Callable[[str], object]) -> None:
        async with self._shared.engine.client():
            await self._settled(spec)
            await self._ready(spec, say)

    async def start(self, spec: SandboxSpec | None = None) -> "DockerSandbox":
        spec = spec or SandboxSpec()
        async with self._shared.engine.client():
            await self._shared.remove_left()
            wanted = await self._settled(spec)
            image = await self._ready(spec, _log.info)
            sandbox = DockerSandbox(self._shared, wanted, image, await self._runtime())
            await self._begin(sandbox, sandbox.start(disk_is_asked_for=spec.limits.disk_mb is not None))
            return sandbox

    async def reap(self, resources: Mapping[str, Any]) -> None:
        """It ended with its owner; it is here when it was never started, or when the engine was not there to see."""
        await self._shared.engine.remove(resources["container"])

    async def close(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in tuple(self._shared.open)))
        if self._shared.left:
            async with self._shared.engine.client():
                await self._shared.remove_left()

    async def _settled(self, spec: SandboxSpec) -> SandboxSpec:
        told = await self._shared.engine.abilities()
        asked = self._shared.runtime
        if asked is not None and asked not in told.runtimes:
            raise ConfigError(
                f"{self.name} has no runtime {asked!r}, only {', '.join(sorted(told.runtimes))}: add it to the "
                "`runtimes` of its configuration (/etc/docker/daemon.json) and restart it"
            )
        self.capabilities = replace(
            self.capabilities,
            network_on=told.network,
            limits=told.limits | {"disk_mb"},
            # An engine elsewhere has other folders.
            folders=self._shared.engine.url.startswith("unix:"),
            # gVisor lets root kill the first process and write to its descriptors; and only root can use the other.
            root_user=not is_gvisor(asked or told.default_runtime),
            writable_root=not is_gvisor(asked or told.default_runtime),
        )
        return settled(spec, self.name, self.capabilities)

    async def _runtime(self) -> str:
        return self._shared.runtime or (await self._shared.engine.abilities()).default_runtime

    async def _begin(self, sandbox: "DockerSandbox", starting: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(self._start_timeout):
                await starting
        except TimeoutError:
            await sandbox.give_up()
            raise SandboxError(
                "start_timeout", f"a container of {self.name} was not ready after {self._start_timeout:g} s"
            ) from None
        except BaseException:
            await sandbox.give_up()
            raise

    # --- images ---

    async def _ready(self, spec: SandboxSpec, say: Callable[[str], object]) -> "_Image":
        """The image of a spec: pulled if it is missing, and baked, once for the same content, if it has to be."""
        name = spec.image or self._image
        found = await self._shared.engine.find_image(name)
        if found is None:
            await self._pull(name, say)
            found = await self._shared.engine.find_image(name)
            if found is None:
                raise SandboxError("start", f"{self.name} pulled the image {name} but does not have it")
        image = _Image(name, tuple(found["Config"].get("Volumes") or ()), baked=False)
        if not (spec.setup or files_outside(spec)):
            return image
        # With the image's own number, as a name can be given to a newer image.
        told = json.dumps([found["Id"], spec.digest, sorted(spec.env.items())])
        tag = hashlib.sha256(told.encode()).hexdigest()[:32]
        baked = replace(image, name=f"{BAKED}:{tag}", baked=True)
        async with self._baking.setdefault(tag, asyncio.Lock()):
            if await self._shared.engine.find_image(baked.name) is None:
                say(f"{name}: running the setup of sandbox_spec")
                await self._bake(spec, image, tag)
        return baked

    async def _pull(self, name: str, say: Callable[[str], object]) -> None:
        say(f"{name}: pulling")
        try:
            async with self._shared.engine.client() as docker, asyncio.timeout(_PULL_SILENCE) as silence:
                async for line in docker.images.pull(name, stream=True):
                    silence.reschedule(asyncio.get_running_loop().time() + _PULL_SILENCE)
                    if not line.get("progressDetail"):
                        say(f"{name}: {line.get('id', '')} {line.get('status', '')}")
        except (DockerError, TimeoutError) as error:
            why = error.message.strip() if isinstance(error, DockerError) else f"silent for {_PULL_SILENCE:.0f} s"
            raise SandboxError(
                "start",
                f"{self.name} does not have the image {name} and cannot pull it: {why}. "
                f"Try `{self.name} pull {name}`, load it with `{self.name} load`, or name another, in sandbox_spec or "
                f"in the setting `image` of the sandbox backend {self.name}.",
            ) from error

    async def _bake(self, spec: SandboxSpec, image: "_Image", tag: str) -> None:
        """Commit an image with the files and the setup. The author's own: no limit, a network if there is one."""
        told = await self._shared.engine.abilities()
        ours = SandboxSpec(env=spec.env, writable_root=True, network=told.network and spec.network is not False)
        # gVisor keeps to itself what is written, where a commit does not see it.
        runtime = "runc" if is_gvisor(told.default_runtime) else told.default_runtime
        sandbox = DockerSandbox(self._shared, ours, image, runtime)
        await self._begin(sandbox, sandbox.start_baking())
        async with sandbox:
            await lay_out(sandbox, Image(None, spec), user=ROOT)
            await sandbox.commit(tag)


class PodmanBackend(DockerBackend):
    """Containers of podman's service (`podman system service`), which speaks docker's protocol."""

    name = "podman"

    @staticmethod
    def _default_url() -> str:
        return podman_url()


@dataclass(frozen=True, slots=True)
class _Image:
    """An image that the engine has. Its `volumes` would be directories on the host's disk that no limit holds."""

    name: str
    volumes: Sequence[str]
    baked: bool


@dataclass
class _Shared:
    """What the sandboxes of one backend share. `left` are containers that could not be removed when they should."""

    engine: Engine
    runtime: str | None
    ledger: Ledger
    open: "set[DockerSandbox]" = field(default_factory=set)
    left: set[str] = field(default_factory=set)

    async def remove(self, name: str, *, ending: bool = False) -> None:
        """Never raises: what could not be removed is tried again later, and is in the ledger till then."""
        try:
            await self.engine.remove(name, ending=ending)
        except SandboxError as error:
            _log.warning("%s; it will be tried again", error)
            self.left.add(name)
        else:
            self.left.discard(name)
            self.ledger.end(name)

    async def remove_left(self) -> None:
        for name in tuple(self.left):
            await self.remove(name)


class DockerSandbox(WardenSandbox):
    """One container. Made by the backend."""

    def __init__(self, shared: _Shared, spec: SandboxSpec, image: _Image, runtime: str) -> None:
        self._attached = AttachedWarden()
        # The image says where its programs are.
        ours = {name: value for name, value in base_environment(WORKSPACE).items() if name != "PATH"}
        super().__init__(self._attached.warden, user=spec.user, env={**ours, "USER": spec.user, **spec.env})
        self.name = f"hermes-rl-{secrets.token_hex(8)}"
        self._shared = shared
        self._spec = spec
        self._image = image
        self._runtime = runtime
        self._docker = shared.engine.hold()
        self._creating: asyncio.Task[DockerContainer] | None = None
        self._answers = False
        shared.open.add(self)

    async def start(self, *, disk_is_asked_for: bool) -> None:
        """Create the container, start it, wait until the warden answers, and furnish the workspace."""
        spec, engine = self._spec, self._shared.engine.name
        limits = spec.limits
        body = container_body(spec, self._image, engine, self._runtime)
        if spec.writable_root and limits.disk_mb:
            body["HostConfig"]["StorageOpt"] = {"size": f"{limits.disk_mb}M"}
        try:
            await self._run(body)
        except _NoQuotaError as error:
            if disk_is_asked_for:
                raise ConfigError(
                    f"{engine} cannot hold a limit on disk_mb for a writable root directory: {error}. "
                    "Leave one of the two out of sandbox_spec"
                ) from error
            del body["HostConfig"]["StorageOpt"]
            await self._run(body)
        script = f"cp -a {_BAKED_WORKSPACE}/. {WORKSPACE}" if self._image.baked else ""
        if engine == "podman":
            # It has no option for the owner of a tmpfs.
            script = f"chown {AGENT_ID}:{AGENT_ID} {WORKSPACE} && chmod 755 {WORKSPACE} && {script or 'true'}"
        if script:
            await self._as_root(script)
        if spec.files and not self._image.baked:
            await lay_out(self, Image(None, spec))

    async def start_baking(self) -> None:
        """As `start`, but without limits, and with everything on the container's own layer."""
        await self._run(baking_body(self._spec, self._image, self._shared.engine.name, self._runtime))
        await self._as_root(f"mkdir -p {WORKSPACE} && chown {AGENT_ID}:{AGENT_ID} {WORKSPACE}")

    async def commit(self, tag: str) -> None:
        """Make an image of what is there now, with the workspace, which will be the agent's, put aside."""
        await self._as_root(
            f"find /tmp -mindepth 1 -delete; mkdir -p {_BAKED_WORKSPACE} && "
            f"cp -a {WORKSPACE}/. {_BAKED_WORKSPACE} && rm -rf {WORKSPACE}"
        )
        await self.end_processes()
        container = self._docker.containers.container(self.name)
        with self._shared.engine.explained(f"commit the image {BAKED}:{tag}"):
            async with asyncio.timeout(_COMMIT_TIMEOUT):
                await container.commit(repository=BAKED, tag=tag, config={})

    def ids(self, user: str) -> tuple[str, str]:
        if user == ROOT and is_gvisor(self._runtime):
            raise ValueError(f"under gVisor commands run as {AGENT} only, not as {user}")
        return container_ids(user)

    async def give_up(self) -> None:
        """Close one that did not start. With an engine that hangs this goes on in the background."""
        try:
            async with asyncio.timeout(_CLEAR_TIME):
                await self.close()
        except TimeoutError:
            _log.warning("%s is slow to remove the container %s", self._shared.engine.name, self.name)

    async def _run(self, body: dict[str, Any]) -> None:
        shared = self._shared
        body["Labels"] = {OWNER_LABEL: shared.ledger.owner, SANDBOX_LABEL: self.name}
        shared.ledger.begin(self.name, shared.engine.name, {"url": shared.engine.url}, {"container": self.name})
        with shared.engine.explained(f"start a container of {self._image.name}"):
            try:
                # Never cancelled half way: the engine would still make it, after we have looked for it.
                self._creating = asyncio.ensure_future(self._docker.containers.create(body, name=self.name))
                container = await asyncio.shield(self._creating)
                await self._attached.attach(container)
                await container.start()
            except DockerError as error:
                raise _explained(error, self._image.name) from error
        settings = {"alone": "1", "keep_env": "1", "withheld": _WITHHELD}
        if self._shared.engine.name == "podman" and not is_gvisor(self._runtime):
            settings["forbid_namespaces"] = "1"
        if is_gvisor(self._runtime):
            limits = self._spec.limits
            settings |= {"processes": str(limits.processes or ""), "memory_mb": str(limits.memory_mb or "")}
        try:
            await self._attached.greet(settings)
        except SandboxError as error:
            raise SandboxError(
                error.cause, f"a container of {self._image.name} ended as soon as it was started: {error}"
            ) from error
        self._answers = True

    async def _as_root(self, script: str) -> None:
        command = Command(script, _COPY_TIMEOUT, cwd="/", merge_stderr=True)
        result = await self.warden.run(command, home=WORKSPACE, ids=container_ids(ROOT), env=self._env)
        if result.exit_code != 0:
            said = result.stdout.decode(errors="replace")[-2000:]
            raise SandboxError("start", f"the workspace could not be laid out ({result.exit_code}): {said}")

    async def _close(self) -> None:
        # The stream first: podman cannot kill a container whose output nobody reads.
        await self._attached.close()
        if self._creating is not None:
            _, late = await asyncio.wait([self._creating], timeout=_LATE_CREATE)
            self._creating.cancel()
            await asyncio.gather(self._creating, return_exceptions=True)
            if late:
                self._shared.left.add(self.name)
            else:
                await self._shared.remove(self.name, ending=self._answers)
        self._shared.open.discard(self)
        await self._shared.engine.release()


class _NoQuotaError(Exception):
    """The engine's storage cannot bound a container's own layer."""


def _explained(error: DockerError, image: str) -> Exception:
    if "storage-opt" in error.message or "storage opt" in error.message.lower():
        return _NoQuotaError(error.message)
    if '"perl"' in error.message or "`perl`" in error.message:
        return SandboxError(
            "start",
            f"the image {image} cannot be a sandbox, it needs bash and perl (Debian's and Ubuntu's have them: packages "
            f"bash and perl-base): {error.message.strip()}",
        )
    return error


def is_gvisor(runtime: str) -> bool:
    return "runsc" in runtime or "gvisor" in runtime


def container_body(spec: SandboxSpec, image: _Image, engine: str, runtime: str) -> dict[str, Any]:
    """The request that makes a sandbox's container."""
    limits = spec.limits
    disk = limits.disk_mb or DEFAULT_LIMITS.disk_mb or 0
    body = baking_body(spec, image, engine, runtime)
    host = body["HostConfig"]
    owner = "" if engine == "podman" else f",uid={AGENT_ID},gid={AGENT_ID}"
    host["Tmpfs"] = {
        WORKSPACE: _tmpfs(engine, disk, f"mode=0755{owner}"),
        "/tmp": _tmpfs(engine, disk, "mode=1777"),  # noqa: S108 - in the container
        "/run": _tmpfs(engine, _SMALL_MB, "mode=0755"),
        **{volume: _tmpfs(engine, disk, "mode=0755") for volume in image.volumes if volume != WORKSPACE},
    }
    host["ReadonlyRootfs"] = not spec.writable_root
    host["Mounts"] = [
        {"Type": "bind", "Source": str(folder.resolve()), "Target": place, "ReadOnly": True}
        for place, folder in spec.folders.items()
    ]
    if limits.memory_mb is not None:
        # Files that are kept in memory count too.
        more = sum(_SMALL_MB if place == "/run" else disk for place in host["Tmpfs"]) + _SMALL_MB
        more += _GVISOR_MB if is_gvisor(runtime) else 0
        host["Memory"] = host["MemorySwap"] = (limits.memory_mb + more) * _MB
    if limits.cpus is not None:
        host["NanoCpus"] = int(limits.cpus * 1e9)
    # gVisor would not survive a limit on its own threads; inside it the warden sets one.
    if limits.processes is not None and not is_gvisor(runtime):
        host["PidsLimit"] = limits.processes
    return body


def baking_body(spec: SandboxSpec, image: _Image, engine: str, runtime: str) -> dict[str, Any]:
    """The request that makes a container to bake an image in, and what a sandbox's has in common with it."""
    host: dict[str, Any] = {
        "AutoRemove": True,
        "NetworkMode": "bridge" if spec.network else "none",
        "Runtime": runtime,
        "IpcMode": "private",
        "ShmSize": _SMALL_MB * _MB,
        "CapDrop": ["ALL"],
        "CapAdd": [*_WARDEN_NEEDS, *_ROOT_NEEDS],
        "SecurityOpt": ["no-new-privileges"],
        # The default would write every byte of the stream to the engine's disk.
        "LogConfig": {"Type": "none"},
    }
    if engine == "docker" and not is_gvisor(runtime):
        # Docker's own list, and the warden, which root could offer to the kernel when memory runs out.
        host["ReadonlyPaths"] = [f"/proc/{name}" for name in ("bus", "fs", "irq", "sys", "sysrq-trigger", "1")]
    if engine == "podman":
        host["Ulimits"] = [{"Name": name, "Soft": top, "Hard": top} for name, top in _PODMAN_LIMITS.items()]
    return {
        "Image": image.name,
        "Entrypoint": ["perl", "-e", PROGRAM],
        "Cmd": [],
        "User": "0:0",
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "OpenStdin": True,
        # Its input ends with the first connection: ours.
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        # The first process of a container does not hear SIGTERM, for which an engine waits ten seconds.
        "StopSignal": "SIGKILL",
        # An image's own would run in the sandbox, beside the policy.
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": host,
    }


def _tmpfs(engine: str, size_mb: int, options: str) -> str:
    # podman would copy what the image has at that place.
    fresh = ",notmpcopyup" if engine == "podman" else ""
    return f"rw,exec,nosuid,nodev,size={size_mb}m,{options}{fresh}"
