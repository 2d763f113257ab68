"""Unpacks a root filesystem from a tar archive: a program of its own, so that no event loop waits for it.

Always true: nothing is written outside the target, whatever the archive says, because names are followed as if the
target were the root directory. All that is unpacked is ours and nobody else's to write, without set-id bits, since
every user of this machine may be able to reach it. Device nodes are left out.
It imports nothing of ours: `python -I unpacking.py hash ARCHIVE`, `python -I unpacking.py unpack ARCHIVE DIRECTORY`.
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

# How the program ends when the archive is at fault, not the machine.
BAD_ARCHIVE = 3

_AGENT_ID = 1000
_PIECE = 1024 * 1024
_TELL_EVERY = 64 * _PIECE
_MOST_LINKS = 40
_ZSTD = bytes.fromhex("28b52ffd")
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
# A sandbox lays its own over these, so they must be there to be laid over.
_LAID_OVER = ("etc/passwd", "etc/group", "etc/hosts", "etc/resolv.conf")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class BadArchiveError(Exception):
    """The archive is no root filesystem, or holds what must not be unpacked."""


def unpack(archive: Path, target: Path, tell: Callable[[int], object] = lambda _: None) -> None:
    """Unpack into a new directory a root filesystem, or the layers of what `docker save` wrote or of an OCI archive."""
    apart = target.with_name(f"{target.name}-archive")
    try:
        _Tree(apart, tell).apply(archive)
        layers = _layers(apart)
        if layers is None:
            apart.rename(target)
            root = _Tree(target, tell)
        else:
            root = _Tree(target, tell)
            for layer in layers:
                root.apply(layer)
    finally:
        shutil.rmtree(apart, ignore_errors=True)
    if not _is_root(target):
        raise BadArchiveError("there is no /usr and no /bin in it, so it is not a root filesystem")
    for name in _LAID_OVER:
        root.require_file(name)


def _is_root(directory: Path) -> bool:
    return any(_is_directory(directory / name) for name in ("usr", "bin"))


class _Tree:
    """A directory that is filled from archives."""

    def __init__(self, root: Path, tell: Callable[[int], object]) -> None:
        self._root = root
        self._tell = tell
        self._written = self._told = 0
        self._fresh: set[Path] = set()
        root.mkdir(exist_ok=True)

    def apply(self, archive: Path) -> None:
        """Unpack one archive over what is there, heeding the marks by which a layer removes what is below it."""
        self._fresh = {self._root}
        modes: dict[Path, int] = {}
        with _opened(archive) as tar:
            for member in tar:
                path = self._place(member.name)
                if path.name == _OPAQUE:
                    self._hide_below(path.parent)
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
        """Make an empty regular file where there is none."""
        path = self._place(name)
        if path.is_symlink() or not path.is_file():
            _remove(path)
            path.touch()

    def _add(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
        self._note_fresh(path)
        if member.isdir():
            if not _is_directory(path):
                _remove(path)
                path.mkdir()
            return
        if path == self._root:
            raise BadArchiveError(f"its root directory is no directory but {member.name!r}")
        if member.issym():
            _remove(path)
            path.symlink_to(member.linkname)
        elif member.islnk():
            self._link(member, path)
        elif member.isreg():
            _remove(path)
            self._write(tar, member, path)

    def _link(self, member: tarfile.TarInfo, path: Path) -> None:
        source = self._place(member.linkname)
        if _is_directory(source) or not os.path.lexists(source):
            raise BadArchiveError(f"{member.name!r} is a link to {member.linkname!r}, which is no file in it")
        if source != path:
            _remove(path)
            os.link(source, path, follow_symlinks=False)

    def _write(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
        content = tar.extractfile(member)
        with path.open("xb") as file:
            while content is not None and (piece := content.read(_PIECE)):
                file.write(piece)
                self._count(len(piece))
        path.chmod(_mode(member))
        with suppress(OverflowError, ValueError, OSError):
            os.utime(path, (member.mtime, member.mtime))

    def _count(self, size: int) -> None:
        self._written += size
        if self._written - self._told >= _TELL_EVERY:
            self._told = self._written
            self._tell(self._written)

    def _place(self, name: str) -> Path:
        """Where a name of the archive belongs. Its directories are followed inside the tree, and made if need be."""
        words = [word for word in name.split("/") if word not in {"", "."}]
        if name.startswith("/") or ".." in words or "\0" in name:
            raise BadArchiveError(f"it holds the name {name!r}, which leads out of it")
        return self._directory(words[:-1]) / words[-1] if words else self._root

    def _directory(self, words: list[str]) -> Path:
        here, ahead, links = self._root, words[::-1], 0
        while ahead:
            word = ahead.pop()
            if word == "..":
                here = here if here == self._root else here.parent
                continue
            path = here / word
            with suppress(FileExistsError):
                path.mkdir()
            if path.is_symlink() and links < _MOST_LINKS:
                links += 1
                target = path.readlink()
                here = self._root if target.is_absolute() else here
                ahead += [part for part in target.parts[::-1] if part != "/"]
            elif _is_directory(path):
                here = path
            else:
                raise BadArchiveError(f"it has files below {path.relative_to(self._root)}, which is no directory in it")
        return here

    def _note_fresh(self, path: Path) -> None:
        while path not in self._fresh:
            self._fresh.add(path)
            path = path.parent

    def _hide_below(self, directory: Path) -> None:
        """Remove what lower layers put into a directory, and leave what this one did."""
        for path in list(directory.iterdir()):
            if path not in self._fresh:
                _remove(path)
            elif _is_directory(path):
                self._hide_below(path)


def _mode(member: tarfile.TarInfo) -> int:
    """Nobody but the owner writes. The agent, who is not the owner, keeps what the image lets user 1000 read."""
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
    """tarfile takes what is damaged after the first member for the archive's end."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile)
        except (TruncatedHeaderError, InvalidHeaderError) as error:
            raise ReadError(str(error)) from error


@contextmanager
def _opened(archive: Path) -> Iterator[tarfile.TarFile]:
    """The archive, read once from its beginning to its end, with whatever compression."""
    try:
        with archive.open("rb") as file:
            if file.peek(4)[:4] != _ZSTD:
                with tarfile.open(fileobj=file, mode="r|*", tarinfo=_Member) as tar:
                    yield tar
                return
            if shutil.which("zstd") is None:
                raise BadArchiveError("it is compressed with zstd, which is not installed here (apt-get install zstd)")
            with (
                subprocess.Popen(["zstd", "-dcq", "--", archive], stdout=subprocess.PIPE) as zstd,
                tarfile.open(fileobj=zstd.stdout, mode="r|", tarinfo=_Member) as tar,
            ):
                yield tar
    except (tarfile.TarError, EOFError) as error:
        raise BadArchiveError(f"{archive.name} is no complete tar archive: {error}") from error


def _layers(archive: Path) -> list[Path] | None:
    """The layers of an unpacked image archive, lowest first; None for what is a root filesystem itself."""
    if _is_root(archive):
        return None
    written_by_docker, index = archive / "manifest.json", archive / "index.json"
    try:
        if written_by_docker.is_file():
            images = json.loads(written_by_docker.read_bytes())
            if len(images) != 1:
                raise BadArchiveError(f"it holds {len(images)} images; write one with `docker save NAME`")
            names = images[0]["Layers"]
        elif index.is_file() and (archive / "oci-layout").is_file():
            names = _oci_layers(archive, json.loads(index.read_bytes()))
        else:
            return None
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise BadArchiveError(f"its list of layers cannot be read: {error!r}") from error
    layers = [(archive / name).resolve() for name in names]
    for layer in layers:
        if not layer.is_file() or not layer.is_relative_to(archive.resolve()):
            raise BadArchiveError(f"its layer {layer.name} is missing")
    return layers


def _oci_layers(archive: Path, index: dict[str, Any]) -> list[str]:
    while "manifests" in index:
        ours = [one for one in index["manifests"] if _is_ours(one.get("platform"))]
        if len(ours) != 1:
            raise BadArchiveError(f"it holds {len(ours)} images for this machine; one is needed")
        index = json.loads((archive / _blob(ours[0])).read_bytes())
    return [_blob(layer) for layer in index["layers"]]


def _is_ours(made_for: dict[str, str] | None) -> bool:
    machine = platform.machine()
    return made_for is None or made_for.get("architecture") == _ARCHITECTURES.get(machine, machine)


def _blob(one: dict[str, str]) -> str:
    kind, digest = one["digest"].split(":")
    if not (kind.isalnum() and digest.isalnum()):
        raise BadArchiveError(f"{one['digest']!r} is no digest")
    return f"blobs/{kind}/{digest}"


def _main(words: list[str]) -> int:
    os.umask(0o022)
    job, archive = words[0], Path(words[1])
    try:
        if job == "hash":
            with archive.open("rb") as file:
                print(hashlib.file_digest(file, "sha256").hexdigest())  # noqa: T201 - a program's result
        else:
            unpack(archive, Path(words[2]), lambda size: print(f"{size // _PIECE} MB", flush=True))  # noqa: T201
    except BadArchiveError as error:
        sys.stderr.write(f"{error}\n")
        return BAD_ARCHIVE
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
