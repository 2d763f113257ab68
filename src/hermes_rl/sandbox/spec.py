"""What a rollout's machine shall be: its image, files, setup, limits and network.

A value. `digest` names all that is baked ahead (image, files, setup), so equal content is prepared once. What an author
asks for is held or refused; what they leave open takes our default where the backend can hold it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path

from hermes_rl.errors import ConfigError

AGENT = "agent"
ROOT = "root"


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one sandbox; None leaves our default. `disk_mb` counts the workspace and /tmp each."""

    memory_mb: int | None = None
    cpus: float | None = None
    processes: int | None = None
    disk_mb: int | None = None

    def named(self) -> dict[str, float]:
        """Those that are set, by name."""
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in given.items() if value is not None}


DEFAULT_LIMITS = Limits(memory_mb=2048, processes=512, disk_mb=1024)


@dataclass(frozen=True)
class SandboxSpec:
    """`network` False must be off, True on, None off where the backend can. `files` are laid out, then `setup` runs.

    `image` is a name for docker, modal and daytona, and a directory or a tar archive for bubblewrap and singularity.
    A relative path in `files` is below the workspace. `setup` is a bash script, run as root where the backend has one.
    `folders` are directories of this machine, seen at those paths and read-only; a setup does not see them.
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

    @property
    def baked(self) -> bool:
        """Whether anything must be prepared besides the image."""
        return bool(self.files or self.setup)

    @cached_property
    def digest(self) -> str:
        """A hash of what is baked: the same for the same content, wherever the files lie."""
        told = hashlib.sha256()
        for part in (self.image or "", self.setup or "", *self._contents()):
            data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogateescape")
            told.update(len(data).to_bytes(8) + data)
        return told.hexdigest()[:24]

    def content(self, name: str) -> bytes:
        """The bytes of one of `files`: as given, or read from the path."""
        given = self.files[name]
        if isinstance(given, Path):
            return given.read_bytes()
        return given.encode() if isinstance(given, str) else given

    def _contents(self) -> list[str | bytes]:
        return [part for name in sorted(self.files) for part in (name, self.content(name))]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend really holds here; anything missing is said to the user, never silently ignored.

    `limits` has the names of the fields of Limits that it holds. `merges_stderr`: the two outputs cannot be told apart.
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


def settled(spec: SandboxSpec, backend: str, can: Capabilities) -> SandboxSpec:
    """The spec with our defaults filled in as far as the backend holds them; ConfigError for what it cannot hold."""
    lacking = [f"a limit on {name}" for name in spec.limits.named() if name not in can.limits]
    if spec.image is not None and not can.images:
        lacking.append("an image")
    if spec.network is False and not can.network_off:
        lacking.append("switching the network off")
    if spec.network is True and not can.network_on:
        lacking.append("a network")
    if spec.user != AGENT and not can.root_user:
        lacking.append(f"the user {spec.user}")
    if spec.writable_root and not can.writable_root:
        lacking.append("a writable root directory")
    if spec.folders and not can.folders:
        lacking.append("a folder of this machine")
    if lacking:
        raise ConfigError(
            f"the sandbox backend {backend} cannot hold what sandbox_spec asks for: {', '.join(lacking)}. "
            "Leave it out, or choose another --env.terminal_backend (docs/sandboxes.md has the table)"
        )
    for place, folder in spec.folders.items():
        if not place.startswith("/") or not folder.is_dir():
            raise ConfigError(
                f"folders of sandbox_spec: {folder} cannot be seen at {place!r}: name a directory, and an absolute path"
            )
    ours = {name: value for name, value in DEFAULT_LIMITS.named().items() if name in can.limits}
    return replace(spec, limits=Limits(**{**ours, **spec.limits.named()}))  # type: ignore[arg-type]
