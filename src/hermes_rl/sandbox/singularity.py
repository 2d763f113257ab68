"""Backend `singularity`: Apptainer's or Singularity's containers, with no daemon and no host directory to write to.

Always true: the sandbox has no network unless asked for, no capability, no way to make a namespace, none of our
environment, and of the host's files only its image, read-only. What it writes is in memory, within its limits. All of
it dies with its first process, which dies with us. Apptainer runs inside a user namespace of ours, as in bubblewrap's
case (namespaces.py tells of the two), so it needs no set-uid part; singularity.pl does what it leaves open.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from hermes_rl.errors import ConfigError, SandboxError
from hermes_rl.sandbox import warden
from hermes_rl.sandbox.confined import ConfinedSandbox, Shared, reap_groups, within
from hermes_rl.sandbox.images import Image, ImageStore, Kitchen, lay_out
from hermes_rl.sandbox.ledger import Ledger
from hermes_rl.sandbox.namespaces import LAUNCH, ROOT_MAY, SHARED_MEMORY_MB, fresh_uid, require_way_in
from hermes_rl.sandbox.protocol import WORKSPACE
from hermes_rl.sandbox.spec import Capabilities, SandboxSpec, settled
from hermes_rl.sandbox.warden import AGENT_ID, PROGRAM

START_TIMEOUT = 60.0
_PROBE_TIMEOUT = 20.0
_BINARIES = ("apptainer", "singularity")
_PREPARE = resources.files("hermes_rl.sandbox").joinpath("singularity.pl").read_text()


class SingularityBackend:
    """Sandboxes from images, as root (each under a uid of its own) or as an ordinary user.

    `image` is for specs that name none: a directory, or a tar archive of one. `binary` is the path of apptainer or
    singularity, when it is not on the PATH.
    """

    name = "singularity"

    def __init__(
        self,
        *,
        image: str | Path | None = None,
        binary: str | Path | None = None,
        start_timeout: float = START_TIMEOUT,
        ledger: Ledger | None = None,
    ) -> None:
        self._shared = Shared(self.name, ledger or Ledger())
        self.capabilities = Capabilities(
            isolates_files=True,
            isolates_processes=True,
            network_off=True,
            network_on=True,
            # Where there are no control groups the kernel still counts processes by user, and files by their tmpfs.
            limits=self._shared.groups.limits | {"processes", "disk_mb"},
            images=True,
            folders=True,
        )
        self._image = None if image is None else str(image)
        self._binary = None if binary is None else str(binary)
        self._start_timeout = start_timeout
        self._images = ImageStore(Kitchen(self.name, self._start_to_bake))

    async def probe(self) -> None:
        async with await self.start() as sandbox:
            result = await sandbox.exec("id -u", timeout=_PROBE_TIMEOUT)
        if result.stdout != f"{AGENT_ID}\n".encode():
            said = result.stderr.decode(errors="replace").strip()
            raise SandboxError("start", f"a singularity sandbox started but cannot run commands: {said}")

    async def prepare(self, spec: SandboxSpec, say: Callable[[str], object]) -> None:
        await self._images.image(self._settled(spec), say)

    async def start(self, spec: SandboxSpec | None = None) -> "SingularitySandbox":
        wanted = self._settled(spec or SandboxSpec())
        image = await self._images.image(wanted)
        owner = fresh_uid({sandbox.owner for sandbox in self._shared.open}) if os.geteuid() == 0 else None
        if owner is not None and image.root is not None:
            require_way_in(image.root)
        for folder in wanted.folders.values() if owner is not None else ():
            require_way_in(folder, "folder")
        return await self._started(SingularitySandbox(self._shared, owner, wanted), image)

    async def _start_to_bake(self, spec: SandboxSpec, root: Path | None) -> "SingularitySandbox":
        if root is None:
            raise AssertionError("a singularity sandbox has an image")
        # It cannot be made inside while the image is writable.
        (root / WORKSPACE.strip("/")).mkdir(exist_ok=True)
        return await self._started(SingularitySandbox(self._shared, None, spec, baking=True), Image(root, spec))

    async def _started(self, sandbox: "SingularitySandbox", image: Image) -> "SingularitySandbox":
        async def starting() -> None:
            await sandbox.start(_find(self._binary), image)

        await within(self._start_timeout, sandbox, starting())
        return sandbox

    async def reap(self, resources: Mapping[str, Any]) -> None:
        await reap_groups(resources)

    async def close(self) -> None:
        await self._images.close()
        await self._shared.close()

    def _settled(self, spec: SandboxSpec) -> SandboxSpec:
        named = spec.image or self._image
        if named is None:
            raise ConfigError(
                "the sandbox backend singularity needs an image, a directory with a root filesystem or a tar of it: "
                "name it in sandbox_spec, or as the backend's `image`"
            )
        if named.endswith(".sif"):
            raise ConfigError(
                f"the image {named} is compressed: make a directory of it once with "
                f"`apptainer build --sandbox DIRECTORY {named}` and name that"
            )
        return settled(replace(spec, image=named), self.name, self.capabilities)


class SingularitySandbox(ConfinedSandbox):
    """One container. Made by the backend; `baking` for the setup of an image, which is run by root."""

    async def start(self, binary: str, image: Image) -> None:
        """Make its control groups, start the container, wait until the warden answers, and lay out the files."""
        shared, limits = self._shared, self._spec.limits
        self._make_groups(2 * self._disk_mb + 2 * SHARED_MEMORY_MB)
        settings = {
            "alone": "1",
            "inner": "" if self._baking else str(AGENT_ID),
            "no_new_privs": "1",
            "dies_with_parent": "1",
            "guard_proc": "" if self._baking else "1",
            "processes": str(limits.processes or ""),
        }
        # Root of this machine stays root for a setup, contained like a container's; anybody else has to become it.
        namespace = "" if self._baking and os.geteuid() == 0 else "namespace"
        joined = "\n".join(map(str, self._groups))
        launch = [_find_perl(), "-e", LAUNCH, joined, "" if self.owner is None else str(self.owner), namespace]
        inside = _container_argv(binary, image, self._spec, self._disk_mb, writable=self._baking)
        # No home: what the user keeps there for Apptainer (settings, keys, binds) is not for sandboxes.
        environment = {"PATH": warden.PATH, "HOME": "/nonexistent", "LANG": "C.UTF-8"}
        try:
            await self._piped.start([*launch, *inside], environment, settings, shared.gate)
        except SandboxError as error:
            raise SandboxError(error.cause, _why_not(str(error))) from error
        await lay_out(self, image)


def _find(binary: str | None) -> str:
    for name in (binary,) if binary else _BINARIES:
        if path := shutil.which(name):
            return path
    raise SandboxError(
        "start",
        f"the singularity backend needs {binary or ' or '.join(_BINARIES)}: install Apptainer (package apptainer), "
        "or set the backend's `binary` to its path",
    )


def _find_perl() -> str:
    perl = shutil.which("perl", path=warden.PATH)
    if perl is None:
        raise SandboxError("start", "the singularity backend needs perl (apt-get install perl-base)")
    return perl


def _container_argv(binary: str, image: Image, spec: SandboxSpec, disk_mb: int, *, writable: bool) -> list[str]:
    """The command that makes the namespaces and runs the warden in them as their first process."""
    contained = "--containall --cleanenv --no-init --no-home --no-umask --uts --hostname sandbox --pwd /".split()
    # `bind-paths` are the directories that an administrator shows in every container; /sys shows the host's devices.
    contained += ["--no-mount", "sys,cwd,bind-paths", "--scratch", WORKSPACE]
    # A place to mount on, which the image may lack.
    contained += ["--writable"] if writable else ["--bind", "/dev/null:/etc/hosts"]
    # To mount; and to map root of the outer user namespace into the inner one, where they end.
    may = ["SYS_ADMIN", *(ROOT_MAY.split() if writable else ["SETFCAP"])]
    contained += ["--add-caps", ",".join(f"CAP_{one}" for one in may)]
    for place, folder in () if writable else spec.folders.items():
        contained += ["--mount", f"type=bind,source={folder.resolve()},destination={place},ro"]
    if not spec.network:
        contained += ["--net", "--network", "none"]
    words = [str(disk_mb), str(SHARED_MEMORY_MB), WORKSPACE, str(AGENT_ID)]
    words += ["network" if spec.network else "", "writable" if writable else ""]
    program = ["/usr/bin/perl", "-e", _PREPARE + PROGRAM, *words]
    return [binary, "--silent", "exec", *contained, str(image.root), *program]


def _why_not(said: str) -> str:
    message = f"a singularity sandbox could not start: {said}."
    if "unshare" in said or "uid_map" in said or "max_user_namespaces" in said or "user namespace" in said:
        message += (
            " User namespaces seem to be forbidden here: as root set sysctl user.max_user_namespaces=10000 and, where "
            "they exist, kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0."
        )
    elif "perl" in said:
        message += " The image needs bash and perl (Debian's and Ubuntu's have them: packages bash and perl-base)."
    return message
