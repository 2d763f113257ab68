"""Workspace directories on this machine, under one parent per backend that is removed with the last of them.

Always true: a workspace is private to our user, and removing one never follows a link that the policy created.
"""

import asyncio
import itertools
import logging
import os
import secrets
import shutil
import tempfile
from pathlib import Path

from hermes_rl.core.errors import SandboxError
from hermes_rl.sandbox.guest_agent.client import PATH
from hermes_rl.sandbox.subprocess_vfork import Child, shield_until_done

_log = logging.getLogger(__name__)

_REMOVE_TIMEOUT = 300.0
_MAX_SMALL = 32
# A user who is not root must first restore the permissions of directories that the policy closed.
REMOVE = 'rm -rf -- "$1" 2>/dev/null || { chmod -R u+rwX -- "$1"; rm -rf -- "$1"; }'


class Workspaces:
    """The workspaces of one backend."""

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
                raise SandboxError("start", f"cannot create a directory for workspaces: {error}; set TMPDIR") from error
        return self._parent

    def create(self) -> Path:
        path = self.parent / secrets.token_hex(8)
        try:
            path.mkdir(mode=0o700)
            self._live.add(path)
        except OSError as error:
            raise SandboxError("start", f"cannot create a workspace: {error}") from error
        return path

    async def remove(self, path: Path) -> None:
        """Remove a workspace after its processes have ended. Never raises; failures are logged."""
        try:
            if not _remove_small(path):
                await remove_tree(path)
        except (OSError, SandboxError) as error:
            _log.warning("cannot remove workspace %s: %s", path, error)
        self._live.discard(path)
        if not self._live and self._parent is not None:
            parent, self._parent = self._parent, None
            shutil.rmtree(parent, ignore_errors=True)


def _remove_small(path: Path) -> bool:
    """Remove a directory of a few files without a subprocess. Returns False, with nothing done, if it holds more."""
    try:
        with os.scandir(path) as entries:
            files = list(itertools.islice(entries, _MAX_SMALL + 1))
    except FileNotFoundError:
        return True
    except PermissionError:
        return False
    if len(files) > _MAX_SMALL or any(entry.is_dir(follow_symlinks=False) for entry in files):
        return False
    try:
        for entry in files:
            Path(entry.path).unlink()
        path.rmdir()
    except PermissionError:
        return False
    return True


async def remove_tree(path: Path) -> None:
    """Remove a directory tree of any size; OSError if some of it remains."""
    stderr_read, stderr_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        argv = ["/bin/sh", "-c", REMOVE, "sh", str(path)]
        child = await shield_until_done(Child.start(argv, {"PATH": PATH}, [null, null, stderr_write]))
        try:
            async with asyncio.timeout(_REMOVE_TIMEOUT):
                await child.exited.wait()
        finally:
            child.kill()
        if child.exit_code != 0:
            raise OSError(os.read(stderr_read, 1000).decode(errors="replace").strip())
    finally:
        for fd in (stderr_read, stderr_write, null):
            os.close(fd)
