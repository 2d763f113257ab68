"""Backends `docker` and `podman`: one container per sandbox, over one attach stream. `runtime="runsc"` uses gVisor.

Always true: unless requested, the container has no network and a read-only root directory. It sees no file or variable
of the host. It has only the capabilities that the guest agent needs; commands have none of them, root's commands some.
It ends with our process, and the engine then removes it.
"""

import asyncio
import hashlib
import json
import logging
import os
import secrets
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
from aiodocker import DockerError
from aiodocker.containers import DockerContainer

from hermes_rl.core.errors import ConfigError, SandboxError
from hermes_rl.sandbox.backends.docker_api import OWNER_LABEL, SANDBOX_LABEL, DockerEngine, docker_url, podman_url
from hermes_rl.sandbox.backends.docker_transport import AttachTransport
from hermes_rl.sandbox.guest_agent.client import AGENT_ID, PROGRAM, GuestAgentSandbox, base_environment, container_ids
from hermes_rl.sandbox.hidden_paths import covers, hidden_paths
from hermes_rl.sandbox.images.materialize import Image, files_outside, materialize
from hermes_rl.sandbox.ledger import SandboxLedger
from hermes_rl.sandbox.protocol import WORKSPACE, Command, probe_by_command
from hermes_rl.sandbox.spec import AGENT, DEFAULT_LIMITS, ROOT, Capabilities, Limits, SandboxSpec, resolve_spec

_log = logging.getLogger(__name__)

IMAGE = "debian:12-slim"
START_TIMEOUT = 60.0
BAKED = "hermes-rl/baked"

_MB = 1024 * 1024
_SMALL_MB = 64
# For gVisor itself, and for what can be allocated before the guest agent notices.
_GVISOR_MB = 512
_COPY_TIMEOUT = 120.0
# Time for a pull to show progress, and for the engine to commit an image.
_PULL_SILENCE = 120.0
_COMMIT_TIMEOUT = 300.0
# Time for a cancelled container creation to finish, and to clean up after a failed start.
_LATE_CREATE = 5.0
_CLEAR_TIME = 5.0
_INSPECT_TIME = 10.0
# Where a baked image stores the workspace, which is a fresh tmpfs in every sandbox.
_BAKED_WORKSPACE = "/hermes-rl/workspace"
# To switch to the command's user, to kill, and to have two capabilities that root's commands lack: a process with fewer
# capabilities than the guest agent can neither trace it nor reach its descriptors. AUDIT_WRITE is not missed.
_GUEST_CAPABILITIES = ("SETUID", "SETGID", "KILL", "SETPCAP", "AUDIT_WRITE")
_DROPPED_CAPABILITIES = "8 29"
# For root's commands: to install packages and to work on files of any owner.
_ROOT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER")
# podman's defaults are higher than a root without CAP_SYS_RESOURCE may set.
_PODMAN_LIMITS = {"nofile": 16384, "nproc": 16384}


class DockerBackend:
    """Containers of a docker engine. `image` is the default for specs without one; it needs bash and perl."""

    name = "docker"

    def __init__(
        self,
        *,
        url: str | None = None,
        runtime: str | None = None,
        image: str | None = None,
        start_timeout: float = START_TIMEOUT,
        ledger: SandboxLedger | None = None,
    ) -> None:
        engine = DockerEngine(self.name, url or self._default_url(), request_timeout=start_timeout)
        self._shared = _DockerState(engine, runtime, ledger or SandboxLedger())
        self._image = image or IMAGE
        self._start_timeout = start_timeout
        self._baking: dict[str, asyncio.Lock] = {}
        # Refined once the engine has been queried.
        self.capabilities = Capabilities(
            isolates_files=True,
            isolates_processes=True,
            network_off=True,
            network_on=True,
            limits=frozenset(Limits.__dataclass_fields__),
            images=True,
            root_user=not is_gvisor(runtime or ""),
            writable_root=not is_gvisor(runtime or ""),
            # A remote engine has other folders.
            folders=engine.url.startswith("unix:"),
        )

    @staticmethod
    def _default_url() -> str:
        return docker_url()

    async def probe(self) -> None:
        await probe_by_command(self, "id -u", b"%d\n" % AGENT_ID)

    async def prepare(self, spec: SandboxSpec, report: Callable[[str], object]) -> None:
        async with self._shared.engine.client():
            await self._resolve_spec(spec)
            await self._prepare_image(spec, report)

    async def start(self, spec: SandboxSpec | None = None) -> "DockerSandbox":
        spec = spec or SandboxSpec()
        async with self._shared.engine.client():
            await self._shared.remove_left()
            resolved = await self._resolve_spec(spec)
            image = await self._prepare_image(spec, _log.info)
            sandbox = DockerSandbox(self._shared, resolved, image, await self._runtime())
            await self._start_sandbox(sandbox, sandbox.start(disk_limit_required=spec.limits.disk_mb is not None))
            return sandbox

    async def reap(self, resources: Mapping[str, Any]) -> None:
        """Left over only if it was never started, or if the engine was down when its owner died."""
        await self._shared.engine.remove(resources["container"])

    async def close(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in tuple(self._shared.open)))
        if self._shared.left:
            async with self._shared.engine.client():
                await self._shared.remove_left()

    async def _resolve_spec(self, spec: SandboxSpec) -> SandboxSpec:
        engine = await self._shared.engine.describe()
        runtime = self._shared.runtime
        if runtime is not None and runtime not in engine.runtimes:
            raise ConfigError(
                f"{self.name} has no runtime {runtime!r}, only {', '.join(sorted(engine.runtimes))}: add it to the "
                "`runtimes` of its configuration (/etc/docker/daemon.json) and restart it"
            )
        self.capabilities = replace(
            self.capabilities,
            network_on=engine.network,
            limits=engine.limits | {"disk_mb"},
            # gVisor lets root kill the first process and write to its descriptors; and only root can use writable_root.
            root_user=not is_gvisor(runtime or engine.default_runtime),
            writable_root=not is_gvisor(runtime or engine.default_runtime),
        )
        return resolve_spec(spec, self.name, self.capabilities)

    async def _runtime(self) -> str:
        return self._shared.runtime or (await self._shared.engine.describe()).default_runtime

    async def _start_sandbox(self, sandbox: "DockerSandbox", starting: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(self._start_timeout):
                await starting
        except TimeoutError:
            await sandbox.give_up()
            raise SandboxError(
                "start_timeout", f"a {self.name} container was not ready after {self._start_timeout:g} s"
            ) from None
        except BaseException:
            await sandbox.give_up()
            raise

    # --- images ---

    async def _prepare_image(self, spec: SandboxSpec, report: Callable[[str], object]) -> "_Image":
        """Pull the image if it is missing; bake files and setup, once for the same content, if there are any."""
        name = spec.image or self._image
        found = await self._shared.engine.find_image(name)
        if found is None:
            await self._pull(name, report)
            found = await self._shared.engine.find_image(name)
            if found is None:
                raise SandboxError("start", f"{self.name} pulled the image {name} but does not have it")
        image = _Image(name, tuple(found["Config"].get("Volumes") or ()), baked=False)
        if not (spec.setup or files_outside(spec)):
            return image
        # Keyed by the image's id, because its name can move to a newer image.
        key = json.dumps([found["Id"], spec.digest, sorted(spec.env.items())])
        tag = hashlib.sha256(key.encode()).hexdigest()[:32]
        baked = replace(image, name=f"{BAKED}:{tag}", baked=True)
        async with self._baking.setdefault(tag, asyncio.Lock()):
            if await self._shared.engine.find_image(baked.name) is None:
                report(f"{name}: running the setup of sandbox_spec")
                await self._bake(spec, image, tag)
        return baked

    async def _pull(self, name: str, report: Callable[[str], object]) -> None:
        report(f"{name}: pulling")
        try:
            async with self._shared.engine.client() as docker, asyncio.timeout(_PULL_SILENCE) as silence:
                async for line in docker.images.pull(name, stream=True):
                    silence.reschedule(asyncio.get_running_loop().time() + _PULL_SILENCE)
                    if not line.get("progressDetail"):
                        report(f"{name}: {line.get('id', '')} {line.get('status', '')}")
        except (DockerError, TimeoutError) as error:
            reason = error.message.strip() if isinstance(error, DockerError) else f"silent for {_PULL_SILENCE:.0f} s"
            raise SandboxError(
                "start",
                f"{self.name} does not have the image {name} and cannot pull it: {reason}. "
                f"Try `{self.name} pull {name}`, load it with `{self.name} load`, or choose another, in sandbox_spec "
                f"or in the setting `image` of the sandbox backend {self.name}.",
            ) from error

    async def _bake(self, spec: SandboxSpec, image: "_Image", tag: str) -> None:
        """Commit an image with files and setup. The setup is the author's: no limits, and network if available."""
        engine = await self._shared.engine.describe()
        baking = SandboxSpec(env=spec.env, writable_root=True, network=engine.network and spec.network is not False)
        # gVisor keeps writes in its own overlay, which a commit does not see.
        runtime = "runc" if is_gvisor(engine.default_runtime) else engine.default_runtime
        sandbox = DockerSandbox(self._shared, baking, image, runtime)
        await self._start_sandbox(sandbox, sandbox.start_baking())
        async with sandbox:
            await materialize(sandbox, Image(None, spec), user=ROOT)
            await sandbox.commit(tag)


class PodmanBackend(DockerBackend):
    """Containers of podman's service (`podman system service`), which speaks docker's API."""

    name = "podman"

    @staticmethod
    def _default_url() -> str:
        return podman_url()


@dataclass(frozen=True, slots=True)
class _Image:
    """An image of the engine. Its `volumes` would be directories on the host's disk without a size limit."""

    name: str
    volumes: Sequence[str]
    baked: bool


@dataclass
class _DockerState:
    """State shared by the sandboxes of one backend. `left` are containers whose removal failed."""

    engine: DockerEngine
    runtime: str | None
    ledger: SandboxLedger
    open: "set[DockerSandbox]" = field(default_factory=set)
    left: set[str] = field(default_factory=set)

    async def remove(self, name: str, *, ending: bool = False) -> None:
        """Never raises. If removal fails it is retried later; the container stays in the ledger until then."""
        try:
            await self.engine.remove(name, ending=ending)
        except SandboxError as error:
            _log.warning("%s; will retry", error)
            self.left.add(name)
        else:
            self.left.discard(name)
            self.ledger.remove(name)

    async def remove_left(self) -> None:
        for name in tuple(self.left):
            await self.remove(name)


class DockerSandbox(GuestAgentSandbox):
    """One container. Created by the backend."""

    def __init__(self, shared: _DockerState, spec: SandboxSpec, image: _Image, runtime: str) -> None:
        self._transport = AttachTransport()
        # PATH is the image's own.
        base = {name: value for name, value in base_environment(WORKSPACE).items() if name != "PATH"}
        super().__init__(self._transport.guest, user=spec.user, env={**base, "USER": spec.user, **spec.env})
        self.name = f"hermes-rl-{secrets.token_hex(8)}"
        self._shared = shared
        self._spec = spec
        self._image = image
        self._runtime = runtime
        self._docker = shared.engine.hold()
        self._creating: asyncio.Task[DockerContainer] | None = None
        self._connected = False
        shared.open.add(self)

    async def start(self, *, disk_limit_required: bool) -> None:
        """Create and start the container, wait for the guest agent, and fill the workspace."""
        spec, engine = self._spec, self._shared.engine.name
        limits = spec.limits
        body = container_body(spec, self._image, engine, self._runtime)
        if spec.writable_root and limits.disk_mb:
            body["HostConfig"]["StorageOpt"] = {"size": f"{limits.disk_mb}M"}
        try:
            await self._run(body)
        except _NoQuotaError as error:
            if disk_limit_required:
                raise ConfigError(
                    f"{engine} cannot enforce disk_mb for a writable root directory: {error}. "
                    "Remove one of the two from sandbox_spec"
                ) from error
            del body["HostConfig"]["StorageOpt"]
            await self._run(body)
        script = f"cp -a {_BAKED_WORKSPACE}/. {WORKSPACE}" if self._image.baked else ""
        if engine == "podman":
            # podman has no option for the owner of a tmpfs.
            script = f"chown {AGENT_ID}:{AGENT_ID} {WORKSPACE} && chmod 755 {WORKSPACE} && {script or 'true'}"
        if script:
            await self._as_root(script)
        if spec.files and not self._image.baked:
            await materialize(self, Image(None, spec))

    async def start_baking(self) -> None:
        """Like `start`, but without limits, and with all files on the container's own layer."""
        await self._run(baking_body(self._spec, self._image, self._shared.engine.name, self._runtime))
        await self._as_root(f"mkdir -p {WORKSPACE} && chown {AGENT_ID}:{AGENT_ID} {WORKSPACE}")

    async def commit(self, tag: str) -> None:
        """Commit the container as an image, with the workspace moved to where sandboxes copy it from."""
        await self._as_root(
            f"find /tmp -mindepth 1 -delete; mkdir -p {_BAKED_WORKSPACE} && "
            f"cp -a {WORKSPACE}/. {_BAKED_WORKSPACE} && rm -rf {WORKSPACE}"
        )
        await self.end_processes()
        container = self._docker.containers.container(self.name)
        with self._shared.engine.translate_errors(f"commit the image {BAKED}:{tag}"):
            async with asyncio.timeout(_COMMIT_TIMEOUT):
                await container.commit(repository=BAKED, tag=tag, config={})

    def ids(self, user: str) -> tuple[str, str]:
        if user == ROOT and is_gvisor(self._runtime):
            raise ValueError(f"under gVisor commands run as {AGENT} only, not as {user}")
        return container_ids(user)

    async def broken_from_outside(self, cause: str) -> bool:
        """What the engine says of the container: policies reach neither it nor its stream, nor kill the first process.

        The kernel kills that for something inside only when memory runs out, which the engine notes.
        """
        try:
            async with asyncio.timeout(_INSPECT_TIME):
                state = (await self._docker.containers.container(self.name).show())["State"]
        except (DockerError, aiohttp.ClientError, OSError, KeyError):
            return True
        if state.get("OOMKilled"):
            return False
        if state.get("Running"):
            return cause == "died" or bool(state.get("Paused"))
        return bool(state.get("ExitCode") == 128 + signal.SIGKILL)

    async def give_up(self) -> None:
        """Close a sandbox that failed to start. If the engine hangs, this continues in the background."""
        try:
            async with asyncio.timeout(_CLEAR_TIME):
                await self.close()
        except TimeoutError:
            _log.warning("%s is slow to remove the container %s", self._shared.engine.name, self.name)

    async def _run(self, body: dict[str, Any]) -> None:
        shared = self._shared
        body["Labels"] = {OWNER_LABEL: shared.ledger.owner, SANDBOX_LABEL: self.name}
        shared.ledger.record(self.name, shared.engine.name, {"url": shared.engine.url}, {"container": self.name})
        with shared.engine.translate_errors(f"start a container of {self._image.name}"):
            try:
                # Never cancelled half way: the engine would still create the container, after our cleanup.
                self._creating = asyncio.ensure_future(self._docker.containers.create(body, name=self.name))
                container = await asyncio.shield(self._creating)
                await self._transport.attach(container)
                await container.start()
            except DockerError as error:
                raise _translate_error(error, self._image.name) from error
        settings = {"alone": "1", "keep_env": "1", "withheld": _DROPPED_CAPABILITIES}
        if self._shared.engine.name == "podman" and not is_gvisor(self._runtime):
            settings["forbid_namespaces"] = "1"
        if is_gvisor(self._runtime):
            limits = self._spec.limits
            settings |= {"processes": str(limits.processes or ""), "memory_mb": str(limits.memory_mb or "")}
        try:
            await self._transport.connect_guest(settings)
        except SandboxError as error:
            raise SandboxError(error.cause, f"a container of {self._image.name} exited immediately: {error}") from error
        self._connected = True

    async def _as_root(self, script: str) -> None:
        command = Command(script, _COPY_TIMEOUT, cwd="/", merge_stderr=True)
        result = await self.guest.run(command, home=WORKSPACE, ids=container_ids(ROOT), env=self._env)
        if result.exit_code != 0:
            output = result.stdout.decode(errors="replace")[-2000:]
            raise SandboxError("start", f"cannot prepare the workspace (exit code {result.exit_code}): {output}")

    async def _close(self) -> None:
        # The stream first: podman cannot kill a container whose output is not read.
        await self._transport.close()
        if self._creating is not None:
            _, late = await asyncio.wait([self._creating], timeout=_LATE_CREATE)
            self._creating.cancel()
            await asyncio.gather(self._creating, return_exceptions=True)
            if late:
                self._shared.left.add(self.name)
            else:
                await self._shared.remove(self.name, ending=self._connected)
        self._shared.open.discard(self)
        await self._shared.engine.release()


class _NoQuotaError(Exception):
    """The engine's storage driver cannot limit the size of a container's layer."""


def _translate_error(error: DockerError, image: str) -> Exception:
    if "storage-opt" in error.message or "storage opt" in error.message.lower():
        return _NoQuotaError(error.message)
    if '"perl"' in error.message or "`perl`" in error.message:
        return SandboxError(
            "start",
            f"the image {image} needs bash and perl (Debian's and Ubuntu's have them: packages bash and "
            f"perl-base): {error.message.strip()}",
        )
    return error


def is_gvisor(runtime: str) -> bool:
    return "runsc" in runtime or "gvisor" in runtime


def container_body(spec: SandboxSpec, image: _Image, engine: str, runtime: str) -> dict[str, Any]:
    """The API request that creates a sandbox's container."""
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
        {"Type": "bind", "Source": str(folder.resolve()), "Target": target, "ReadOnly": True}
        for target, folder in spec.folders.items()
    ]
    if limits.memory_mb is not None:
        # Files on a tmpfs count as memory too.
        extra = sum(_SMALL_MB if path == "/run" else disk for path in host["Tmpfs"]) + _SMALL_MB
        extra += _GVISOR_MB if is_gvisor(runtime) else 0
        host["Memory"] = host["MemorySwap"] = (limits.memory_mb + extra) * _MB
    if limits.cpus is not None:
        host["NanoCpus"] = int(limits.cpus * 1e9)
    # gVisor does not survive a limit on its own threads; the guest agent sets one inside.
    if limits.processes is not None and not is_gvisor(runtime):
        host["PidsLimit"] = limits.processes
    # After the memory limit, which counts each writable tmpfs.
    for target, folder in spec.folders.items():
        for cover in covers(folder, target, hidden_paths(spec.hidden)):
            if cover.folder:
                host["Tmpfs"][cover.target] = _tmpfs(engine, 1, "mode=0555").replace("rw,", "ro,", 1)
            else:
                host["Mounts"] += [{"Type": "bind", "Source": os.devnull, "Target": cover.target, "ReadOnly": True}]
    return body


def baking_body(spec: SandboxSpec, image: _Image, engine: str, runtime: str) -> dict[str, Any]:
    """The API request for a container in which an image is baked; also the base of a sandbox's request."""
    host: dict[str, Any] = {
        "AutoRemove": True,
        "NetworkMode": "bridge" if spec.network else "none",
        "Runtime": runtime,
        "IpcMode": "private",
        "ShmSize": _SMALL_MB * _MB,
        "CapDrop": ["ALL"],
        "CapAdd": [*_GUEST_CAPABILITIES, *_ROOT_CAPABILITIES],
        "SecurityOpt": ["no-new-privileges"],
        # The default log driver would write every byte of the stream to the engine's disk.
        "LogConfig": {"Type": "none"},
    }
    if engine == "docker" and not is_gvisor(runtime):
        # Docker's own list, and /proc/1: root could make the guest agent the OOM killer's first choice.
        host["ReadonlyPaths"] = [f"/proc/{name}" for name in ("bus", "fs", "irq", "sys", "sysrq-trigger", "1")]
    if engine == "podman":
        host["Ulimits"] = [{"Name": name, "Soft": limit, "Hard": limit} for name, limit in _PODMAN_LIMITS.items()]
    return {
        "Image": image.name,
        "Entrypoint": ["perl", "-e", PROGRAM],
        "Cmd": [],
        "User": "0:0",
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "OpenStdin": True,
        # stdin closes with the first connection: ours.
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        # The first process of a container ignores SIGTERM, and the engine would wait ten seconds.
        "StopSignal": "SIGKILL",
        # The image's own health check would run in the sandbox.
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": host,
    }


def _tmpfs(engine: str, size_mb: int, options: str) -> str:
    # podman would copy the image's files at that path.
    fresh = ",notmpcopyup" if engine == "podman" else ""
    return f"rw,exec,nosuid,nodev,size={size_mb}m,{options}{fresh}"
