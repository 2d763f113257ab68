"""Unpacks a root filesystem from a tar archive. Runs as a separate process, so that it does not block an event loop.

Always true: nothing is written outside the target, whatever the archive contains: names are resolved as if the target
were the root directory. Unpacked files are owned and writable only by us, without setuid/setgid bits, since every user
of this machine may be able to reach them. Device nodes are skipped.
It imports nothing from hermes_rl: `python -I rootfs.py hash ARCHIVE`, `python -I rootfs.py unpack ARCHIVE DIRECTORY`.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tarfile import InvalidHeaderError, ReadError, TruncatedHeaderError  # type: ignore[attr-defined]
from typing import Any, Self

# Exit code for a bad archive, as opposed to a failure of this machine.
BAD_ARCHIVE = 3

_AGENT_ID = 1000
_CHUNK = 1024 * 1024
_REPORT_EVERY = 64 * _CHUNK
_MAX_SYMLINKS = 40
_ZSTD = bytes.fromhex("28b52ffd")
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
# A sandbox mounts its own files over these, so they must exist.
_MOUNT_POINTS = ("etc/passwd", "etc/group", "etc/hosts", "etc/resolv.conf")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class BadRootfsError(Exception):
    """The archive is not a root filesystem, or contains something that must not be unpacked."""


def unpack(archive: Path, target: Path, report: Callable[[int], object] = lambda _: None) -> None:
    """Unpack a root filesystem, or the layers of a `docker save` or OCI archive, into a new directory."""
    staging = target.with_name(f"{target.name}-archive")
    try:
        _Tree(staging, report).apply(archive)
        layers = _layers(staging)
        if layers is None:
            staging.rename(target)
            root = _Tree(target, report)
        else:
            root = _Tree(target, report)
            for layer in layers:
                root.apply(layer)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    if not _is_root(target):
        raise BadRootfsError("there is no /usr and no /bin in it, so it is not a root filesystem")
    for name in _MOUNT_POINTS:
        root.require_file(name)


def _is_root(directory: Path) -> bool:
    return any(_is_directory(directory / name) for name in ("usr", "bin"))


class _Tree:
    """A directory filled from archives."""

    def __init__(self, root: Path, report: Callable[[int], object]) -> None:
        self._root = root
        self._report = report
        self._written = self._reported = 0
        self._fresh: set[Path] = set()
        root.mkdir(exist_ok=True)

    def apply(self, archive: Path) -> None:
        """Unpack one archive over the existing files, applying whiteouts (markers for files removed by a layer)."""
        self._fresh = {self._root}
        modes: dict[Path, int] = {}
        with _open_archive(archive) as tar:
            for member in tar:
                path = self._resolve(member.name)
                if path.name == _OPAQUE:
                    self._remove_lower(path.parent)
                elif path.name.startswith(_WHITEOUT) and path != self._root:
                    _remove(path.with_name(path.name.removeprefix(_WHITEOUT)))
                else:
                    self._add(tar, member, path)
                    if member.isdir():
                        modes[path] = _mode(member)
        for path, mode in modes.items():
            if _is_directory(path):
                path.chmod(mode)

    def require_file(self, name: str) -> None:
        """Create an empty regular file if there is none."""
        path = self._resolve(name)
        if path.is_symlink() or not path.is_file():
            _remove(path)
            path.touch()

    def _add(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
        self._mark_fresh(path)
        if member.isdir():
            if not _is_directory(path):
                _remove(path)
                path.mkdir()
            return
        if path == self._root:
            raise BadRootfsError(f"its root directory is not a directory but {member.name!r}")
        if member.issym():
            _remove(path)
            path.symlink_to(member.linkname)
        elif member.islnk():
            self._link(member, path)
        elif member.isreg():
            _remove(path)
            self._write(tar, member, path)

    def _link(self, member: tarfile.TarInfo, path: Path) -> None:
        source = self._resolve(member.linkname)
        if _is_directory(source) or not os.path.lexists(source):
            raise BadRootfsError(f"{member.name!r} is a link to {member.linkname!r}, which is not a file in it")
        if source != path:
            _remove(path)
            os.link(source, path, follow_symlinks=False)

    def _write(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
        content = tar.extractfile(member)
        with path.open("xb") as file:
            while content is not None and (chunk := content.read(_CHUNK)):
                file.write(chunk)
                self._count(len(chunk))
        path.chmod(_mode(member))
        with suppress(OverflowError, ValueError, OSError):
            os.utime(path, (member.mtime, member.mtime))

    def _count(self, size: int) -> None:
        self._written += size
        if self._written - self._reported >= _REPORT_EVERY:
            self._reported = self._written
            self._report(self._written)

    def _resolve(self, name: str) -> Path:
        """The path of an archive member. Parent directories are resolved inside the tree, and created if missing."""
        parts = [part for part in name.split("/") if part not in {"", "."}]
        if name.startswith("/") or ".." in parts or "\0" in name:
            raise BadRootfsError(f"it contains the name {name!r}, which leads out of it")
        return self._directory(parts[:-1]) / parts[-1] if parts else self._root

    def _directory(self, parts: list[str]) -> Path:
        current, remaining, links = self._root, parts[::-1], 0
        while remaining:
            part = remaining.pop()
            if part == "..":
                current = current if current == self._root else current.parent
                continue
            path = current / part
            with suppress(FileExistsError):
                path.mkdir()
            if path.is_symlink() and links < _MAX_SYMLINKS:
                links += 1
                target = path.readlink()
                current = self._root if target.is_absolute() else current
                remaining += [part for part in target.parts[::-1] if part != "/"]
            elif _is_directory(path):
                current = path
            else:
                raise BadRootfsError(
                    f"it has files below {path.relative_to(self._root)}, which is not a directory in it"
                )
        return current

    def _mark_fresh(self, path: Path) -> None:
        while path not in self._fresh:
            self._fresh.add(path)
            path = path.parent

    def _remove_lower(self, directory: Path) -> None:
        """Remove what lower layers put into a directory; keep what this layer did."""
        for path in list(directory.iterdir()):
            if path not in self._fresh:
                _remove(path)
            elif _is_directory(path):
                self._remove_lower(path)


def _mode(member: tarfile.TarInfo) -> int:
    """Only the owner can write. The agent, who is not the owner, can read what the image lets user 1000 read."""
    mode = member.mode
    if member.uid == _AGENT_ID:
        mode |= mode >> 6 & 0o5
    elif member.gid == _AGENT_ID:
        mode |= mode >> 3 & 0o5
    return mode & 0o755 | (0o700 if member.isdir() else 0o600)


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _remove(path: Path) -> None:
    if _is_directory(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class _Member(tarfile.TarInfo):
    """Raises for a damaged header, which tarfile would treat as the end of the archive."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile)
        except (TruncatedHeaderError, InvalidHeaderError) as error:
            raise ReadError(str(error)) from error


@contextmanager
def _open_archive(archive: Path) -> Iterator[tarfile.TarFile]:
    """Open the archive for sequential reading, with any compression."""
    try:
        with archive.open("rb") as file:
            if file.peek(4)[:4] != _ZSTD:
                with tarfile.open(fileobj=file, mode="r|*", tarinfo=_Member) as tar:
                    yield tar
                return
            if shutil.which("zstd") is None:
                raise BadRootfsError("it is compressed with zstd, which is not installed here (apt-get install zstd)")
            with (
                subprocess.Popen(["zstd", "-dcq", "--", archive], stdout=subprocess.PIPE) as zstd,
                tarfile.open(fileobj=zstd.stdout, mode="r|", tarinfo=_Member) as tar,
            ):
                yield tar
    except (tarfile.TarError, EOFError) as error:
        raise BadRootfsError(f"{archive.name} is not a complete tar archive: {error}") from error


def _layers(archive: Path) -> list[Path] | None:
    """The layers of an unpacked image archive, lowest first; None if it is a root filesystem itself."""
    if _is_root(archive):
        return None
    docker_manifest, index = archive / "manifest.json", archive / "index.json"
    try:
        if docker_manifest.is_file():
            images = json.loads(docker_manifest.read_bytes())
            if len(images) != 1:
                raise BadRootfsError(f"it contains {len(images)} images; save one with `docker save NAME`")
            names = images[0]["Layers"]
        elif index.is_file() and (archive / "oci-layout").is_file():
            names = _oci_layers(archive, json.loads(index.read_bytes()))
        else:
            return None
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise BadRootfsError(f"its list of layers cannot be read: {error!r}") from error
    layers = [(archive / name).resolve() for name in names]
    for layer in layers:
        if not layer.is_file() or not layer.is_relative_to(archive.resolve()):
            raise BadRootfsError(f"its layer {layer.name} is missing")
    return layers


def _oci_layers(archive: Path, index: dict[str, Any]) -> list[str]:
    while "manifests" in index:
        matching = [each for each in index["manifests"] if _is_for_this_machine(each.get("platform"))]
        if len(matching) != 1:
            raise BadRootfsError(f"it contains {len(matching)} images for this architecture; it must contain one")
        index = json.loads((archive / _blob_path(matching[0])).read_bytes())
    return [_blob_path(layer) for layer in index["layers"]]


def _is_for_this_machine(image_platform: dict[str, str] | None) -> bool:
    machine = platform.machine()
    return image_platform is None or image_platform.get("architecture") == _ARCHITECTURES.get(machine, machine)


def _blob_path(descriptor: dict[str, str]) -> str:
    algorithm, digest = descriptor["digest"].split(":")
    if not (algorithm.isalnum() and digest.isalnum()):
        raise BadRootfsError(f"{descriptor['digest']!r} is not a digest")
    return f"blobs/{algorithm}/{digest}"


def _main(argv: list[str]) -> int:
    os.umask(0o022)
    job, archive = argv[0], Path(argv[1])
    try:
        if job == "hash":
            with archive.open("rb") as file:
                print(hashlib.file_digest(file, "sha256").hexdigest())  # noqa: T201 - a program's result
        else:
            unpack(archive, Path(argv[2]), lambda size: print(f"{size // _CHUNK} MB", flush=True))  # noqa: T201
    except BadRootfsError as error:
        sys.stderr.write(f"{error}\n")  # noqa: TID251 (read by the process that started this one)
        return BAD_ARCHIVE
    except OSError as error:
        sys.stderr.write(f"{error}\n")  # noqa: TID251 (read by the process that started this one)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
