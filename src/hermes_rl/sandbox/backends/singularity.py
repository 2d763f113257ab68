"""Backend `singularity`: Apptainer or Singularity containers, without a daemon or a writable host directory.

Always true: the sandbox has no network unless requested, no capabilities, no way to create a namespace, none of our
environment variables, and sees only its image, read-only, without our package and the environment's own files. Its
files are in memory, within its limits. All its processes die with its first process, which dies with us. Apptainer runs
inside our user namespace (see bwrap_arguments.py), so it needs no setuid helper; singularity.pl closes what Apptainer
leaves open.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import ConfigError, SandboxError
from hermes_rl.sandbox.backends.bwrap_arguments import (
    LAUNCH,
    SETUP_CAPABILITIES,
    SHARED_MEMORY_MB,
    explain_start_failure,
)
from hermes_rl.sandbox.backends.namespaced import NamespacedSandbox, NamespacedState, reap_cgroups, start_within
from hermes_rl.sandbox.guest_agent import client
from hermes_rl.sandbox.guest_agent.client import AGENT_ID, PROGRAM
from hermes_rl.sandbox.hidden_paths import covers, hidden_paths
from hermes_rl.sandbox.images.store import Image, ImageBuilder, ImageStore, materialize
from hermes_rl.sandbox.ledger import SandboxLedger
from hermes_rl.sandbox.protocol import WORKSPACE, probe_by_command
from hermes_rl.sandbox.spec import Capabilities, SandboxSpec, resolve_spec

START_TIMEOUT = 60.0
_BINARIES = ("apptainer", "singularity")
_PREPARE = resources.files("hermes_rl.sandbox.backends").joinpath("singularity.pl").read_text()


class SingularityBackend:
    """Sandboxes from images. Started by root, each gets its own uid; an ordinary user can start them too.

    `image` is the default for specs without one: a directory, or a tar archive of one. `binary` is the path of
    apptainer or singularity if it is not on the PATH.
    """

    name = "singularity"

    def __init__(
        self,
        *,
        image: str | Path | None = None,
        binary: str | Path | None = None,
        start_timeout: float = START_TIMEOUT,
        ledger: SandboxLedger | None = None,
    ) -> None:
        self._shared = NamespacedState(self.name, ledger or SandboxLedger())
        self.capabilities = Capabilities(
            isolates_files=True,
            isolates_processes=True,
            network_off=True,
            network_on=True,
            # These two do not need control groups: RLIMIT_NPROC and the size of a tmpfs.
            limits=self._shared.groups.limits | {"processes", "disk_mb"},
            images=True,
            folders=True,
        )
        self._image = None if image is None else str(image)
        self._binary = None if binary is None else str(binary)
        self._start_timeout = start_timeout
        self._images = ImageStore(ImageBuilder(self.name, self._start_for_baking))

    async def probe(self) -> None:
        await probe_by_command(self, "id -u", b"%d\n" % AGENT_ID)

    async def prepare(self, spec: SandboxSpec, report: Callable[[str], object]) -> None:
        await self._images.image(self._resolve_spec(spec), report)

    async def start(self, spec: SandboxSpec | None = None) -> "SingularitySandbox":
        resolved = self._resolve_spec(spec or SandboxSpec())
        image = await self._images.image(resolved)
        owner = self._shared.choose_owner(image, resolved)
        return await self._start_sandbox(SingularitySandbox(self._shared, owner, resolved), image)

    async def _start_for_baking(self, spec: SandboxSpec, root: Path | None) -> "SingularitySandbox":
        if root is None:
            raise AssertionError("a singularity sandbox has an image")
        # Apptainer cannot create the directory while the image is writable.
        (root / WORKSPACE.strip("/")).mkdir(exist_ok=True)
        return await self._start_sandbox(SingularitySandbox(self._shared, None, spec, baking=True), Image(root, spec))

    async def _start_sandbox(self, sandbox: "SingularitySandbox", image: Image) -> "SingularitySandbox":
        await start_within(self._start_timeout, sandbox, sandbox.start(self._binary, image))
        return sandbox

    async def reap(self, resources: Mapping[str, Any]) -> None:
        await reap_cgroups(resources)

    async def close(self) -> None:
        await self._images.close()
        await self._shared.close()

    def _resolve_spec(self, spec: SandboxSpec) -> SandboxSpec:
        image = spec.image or self._image
        if image is None:
            raise ConfigError(
                "the sandbox backend singularity needs an image (a directory with a root filesystem, or a tar of one): "
                "set it in sandbox_spec, or as the backend's `image`"
            )
        if image.endswith(".sif"):
            raise ConfigError(
                f"the image {image} is compressed: convert it to a directory once with "
                f"`apptainer build --sandbox DIRECTORY {image}` and use that"
            )
        return resolve_spec(replace(spec, image=image), self.name, self.capabilities)


class SingularitySandbox(NamespacedSandbox):
    """One container. Created by the backend."""

    async def start(self, binary: str | None, image: Image) -> None:
        """Create control groups, start the container, wait for the guest agent, write the files."""
        binary = _find_binary(binary)
        shared, limits = self._shared, self._spec.limits
        self._create_groups(2 * self._disk_mb + 2 * SHARED_MEMORY_MB)
        settings = {
            "alone": "1",
            "inner": "" if self._baking else str(AGENT_ID),
            "no_new_privs": "1",
            "dies_with_parent": "1",
            "guard_proc": "" if self._baking else "1",
            "processes": str(limits.processes or ""),
        }
        # For a setup, host root stays root, confined as in a container. Other users become root in a namespace.
        namespace = "" if self._baking and os.geteuid() == 0 else "namespace"
        joined = "\n".join(map(str, self._groups))
        launch = [_find_perl(), "-e", LAUNCH, joined, "" if self.owner is None else str(self.owner), namespace]
        container = _container_argv(binary, image, self._spec, self._disk_mb, writable=self._baking)
        # No HOME: the user's Apptainer settings, keys and binds must not reach sandboxes.
        environment = {"PATH": client.PATH, "HOME": "/nonexistent", "LANG": "C.UTF-8"}
        try:
            await self._transport.start([*launch, *container], environment, settings, shared.gate)
        except SandboxError as error:
            raise SandboxError(error.cause, explain_start_failure(shared.backend, str(error))) from error
        await materialize(self, image)


def _find_binary(binary: str | None) -> str:
    for name in (binary,) if binary else _BINARIES:
        if path := shutil.which(name):
            return path
    raise SandboxError(
        "start",
        f"the singularity backend needs {binary or ' or '.join(_BINARIES)}: install Apptainer (package apptainer), "
        "or set the backend's `binary` to its path",
    )


def _find_perl() -> str:
    perl = shutil.which("perl", path=client.PATH)
    if perl is None:
        raise SandboxError("start", "the singularity backend needs perl (apt-get install perl-base)")
    return perl


def _container_argv(binary: str, image: Image, spec: SandboxSpec, disk_mb: int, *, writable: bool) -> list[str]:
    """The command that creates the namespaces and runs the guest agent as their first process."""
    options = "--containall --cleanenv --no-init --no-home --no-umask --uts --hostname sandbox --pwd /".split()
    # `bind-paths` are directories that the administrator mounts in every container; /sys shows the host's devices.
    options += ["--no-mount", "sys,cwd,bind-paths", "--scratch", WORKSPACE]
    # A mount point for /etc/hosts, which the image may lack.
    options += ["--writable"] if writable else ["--bind", "/dev/null:/etc/hosts"]
    # To mount, and to map root of the outer user namespace into the inner one, where the capabilities end.
    capabilities = ["SYS_ADMIN", *(SETUP_CAPABILITIES.split() if writable else ["SETFCAP"])]
    options += ["--add-caps", ",".join(f"CAP_{name}" for name in capabilities)]
    for target, folder in () if writable else spec.folders.items():
        options += ["--mount", f"type=bind,source={folder.resolve()},destination={target},ro"]
    if not spec.network:
        options += ["--net", "--network", "none"]
    arguments = [str(disk_mb), str(SHARED_MEMORY_MB), WORKSPACE, str(AGENT_ID)]
    arguments += ["network" if spec.network else "", "writable" if writable else ""]
    mounts = {"/": image.root or Path("/"), **({} if writable else spec.folders)}
    hidden = hidden_paths(spec.hidden)
    arguments += [cover.target for target, folder in mounts.items() for cover in covers(folder, target, hidden)]
    program = ["/usr/bin/perl", "-e", _PREPARE + PROGRAM, *arguments]
    return [binary, "--silent", "exec", *options, str(image.root), *program]
