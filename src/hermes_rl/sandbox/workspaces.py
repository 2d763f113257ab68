"""The directories that become workspaces: one parent for this process, gone with the last of them.

Always true: a workspace is private to our user, and removing one never follows a link that the policy made.
"""

import asyncio
import itertools
import logging
import os
import secrets
import shutil
import tempfile
from pathlib import Path

from hermes_rl.errors import SandboxError
from hermes_rl.sandbox.child import Child, to_the_end
from hermes_rl.sandbox.warden import PATH

_log = logging.getLogger(__name__)

_REMOVE_TIMEOUT = 300.0
_FEW = 32
# For a user who is not root, directories that the policy closed must be opened first; they are ours.
REMOVE = 'rm -rf -- "$1" 2>/dev/null || { chmod -R u+rwX -- "$1"; rm -rf -- "$1"; }'


class Workspaces:
    """The workspaces of one backend, under a directory of their own in the system's temporary directory."""

    def __init__(self) -> None:
        self._parent: Path | None = None
        self._live: set[Path] = set()

    @property
    def parent(self) -> Path:
        if self._parent is None:
            prefix = f"hermes-rl-{os.getpid()}-"
            try:
                self._parent = Path(tempfile.mkdtemp(prefix=prefix))
            except OSError as error:
                raise SandboxError("start", f"cannot make a directory for workspaces: {error}; set TMPDIR") from error
        return self._parent

    def create(self) -> Path:
        """A new empty directory."""
        path = self.parent / secrets.token_hex(8)
        try:
            path.mkdir(mode=0o700)
            self._live.add(path)
        except OSError as error:
            raise SandboxError("start", f"cannot make a workspace: {error}") from error
        return path

    async def remove(self, path: Path) -> None:
        """Remove a workspace whose processes are dead. Never raises; what could not be removed is logged."""
        try:
            if not _remove_few(path):
                await remove_tree(path)
        except (OSError, SandboxError) as error:
            _log.warning("workspace %s could not be removed: %s", path, error)
        self._live.discard(path)
        if not self._live and self._parent is not None:
            parent, self._parent = self._parent, None
            shutil.rmtree(parent, ignore_errors=True)


def _remove_few(path: Path) -> bool:
    """Remove a directory that holds only a few files; False when it holds more and nothing was done."""
    try:
        with os.scandir(path) as entries:
            few = list(itertools.islice(entries, _FEW + 1))
    except FileNotFoundError:
        return True
    except PermissionError:
        return False
    if len(few) > _FEW or any(entry.is_dir(follow_symlinks=False) for entry in few):
        return False
    try:
        for entry in few:
            Path(entry.path).unlink()
        path.rmdir()
    except PermissionError:
        return False
    return True


async def remove_tree(path: Path) -> None:
    """Remove a directory with all that is in it, however large; OSError when some of it stays."""
    complaint, said = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        argv = ["/bin/sh", "-c", REMOVE, "sh", str(path)]
        child = await to_the_end(Child.start(argv, {"PATH": PATH}, [nothing, nothing, said]))
        try:
            async with asyncio.timeout(_REMOVE_TIMEOUT):
                await child.exited.wait()
        finally:
            child.kill()
        if child.exit_code != 0:
            raise OSError(os.read(complaint, 1000).decode(errors="replace").strip())
    finally:
        for fd in (complaint, said, nothing):
            os.close(fd)
