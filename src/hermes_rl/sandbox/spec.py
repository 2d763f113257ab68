"""SandboxSpec: the image, files, setup, limits and network of a rollout's sandbox.

`digest` identifies everything that is baked ahead (image, files, setup), so equal content is prepared once. What the
author asks for is enforced or refused; what they leave open gets our default where the backend supports it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path

from hermes_rl.core.errors import ConfigError

AGENT = "agent"
ROOT = "root"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one sandbox; None means our default. `disk_mb` applies to the workspace and to /tmp separately."""

    memory_mb: int | None = None
    cpus: float | None = None
    processes: int | None = None
    disk_mb: int | None = None

    def named(self) -> dict[str, float]:
        """The limits that are set, by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


DEFAULT_LIMITS = Limits(memory_mb=2048, processes=512, disk_mb=1024)


@dataclass(frozen=True)
class SandboxSpec:
    """`network`: False is off, True is on, None is off where the backend can. `files` are written, then `setup` runs.

    `image` is a name for docker, modal and daytona, and a directory or a tar archive for bubblewrap and singularity.
    A relative path in `files` is below the workspace. `setup` is a bash script, run as root where the backend has root.
    `folders` are directories of this machine, mounted read-only at those paths; a setup does not see them.
    `hidden` are files and directories of this machine that no mount may show, besides the environment's own.
    """

    image: str | None = None
    files: Mapping[str, bytes | str | Path] = field(default_factory=dict)
    setup: str | None = None
    limits: Limits = Limits()
    network: bool | None = None
    user: str = AGENT
    writable_root: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, Path] = field(default_factory=dict)
    hidden: Sequence[Path] = ()

    @property
    def baked(self) -> bool:
        """Whether there is anything to prepare besides the image."""
        return bool(self.files or self.setup)

    @cached_property
    def digest(self) -> str:
        """A hash of what is baked: equal for equal content, wherever the files are."""
        digest = hashlib.sha256()
        for part in (self.image or "", self.setup or "", *self._contents()):
            data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogateescape")
            digest.update(len(data).to_bytes(8) + data)
        return digest.hexdigest()[:24]

    def content(self, name: str) -> bytes:
        """The bytes of one of `files`."""
        source = self.files[name]
        if isinstance(source, Path):
            return source.read_bytes()
        return source.encode() if isinstance(source, str) else source

    def _contents(self) -> list[str | bytes]:
        return [part for name in sorted(self.files) for part in (name, self.content(name))]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can enforce here. What it cannot is refused, never silently ignored.

    `limits` has the names of the Limits fields that it enforces.
    """

    isolates_files: bool
    isolates_processes: bool
    network_off: bool
    network_on: bool = False
    limits: frozenset[str] = frozenset()
    images: bool = False
    root_user: bool = False
    writable_root: bool = False
    folders: bool = False


def resolve_spec(spec: SandboxSpec, backend: str, capabilities: Capabilities) -> SandboxSpec:
    """Fill in our defaults as far as the backend supports them; ConfigError for anything it does not support."""
    unsupported = [f"a limit on {name}" for name in spec.limits.named() if name not in capabilities.limits]
    if spec.image is not None and not capabilities.images:
        unsupported.append("an image")
    if spec.network is False and not capabilities.network_off:
        unsupported.append("switching the network off")
    if spec.network is True and not capabilities.network_on:
        unsupported.append("a network")
    if spec.user != AGENT and not capabilities.root_user:
        unsupported.append(f"the user {spec.user}")
    if spec.writable_root and not capabilities.writable_root:
        unsupported.append("a writable root directory")
    if spec.folders and not capabilities.folders:
        unsupported.append("a folder of this machine")
    if unsupported:
        raise ConfigError(
            f"the sandbox backend {backend} does not support what sandbox_spec asks for: {', '.join(unsupported)}. "
            "Leave it out, or choose another --env.terminal_backend (docs/sandboxes.md has the table)"
        )
    for target, folder in spec.folders.items():
        if not target.startswith("/") or not folder.is_dir():
            raise ConfigError(
                f"folders of sandbox_spec: cannot mount {folder} at {target!r}: give a directory and an absolute path"
            )
    defaults = {name: value for name, value in DEFAULT_LIMITS.named().items() if name in capabilities.limits}
    return replace(spec, limits=Limits(**{**defaults, **spec.limits.named()}))  # type: ignore[arg-type]
