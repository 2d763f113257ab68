"""Remove items from disk.

Always true: each path is renamed while its locks are held, before anything is deleted. After a `kill -9` an item is
complete or gone, and the next scan finds what is left to delete. One process removes at a time.
"""

import asyncio
import fcntl
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.paths import rl_home
from hermes_rl.core.private_files import private_folder
from hermes_rl.orchestration.cleanup.plan import DiskItem, ItemKind
from hermes_rl.orchestration.cleanup.scan import REMOVED, find_disk_items, run_state
from hermes_rl.orchestration.run_paths import runs_database
from hermes_rl.sandbox.backends.baked_images import remove_baked_image
from hermes_rl.sandbox.workspaces import REMOVE
from hermes_rl.store.database.store import open_store

DELETE_SECONDS = 3600.0


class RemovalError(HermesRLError):
    """An item, or some of its files, could not be removed; the message says why."""


def remove_all(chosen: Sequence[DiskItem], report: Callable[[int, str], object] = lambda *_: None) -> dict[str, str]:
    """Remove the items that still exist and are not in use. Returns the errors by location."""
    private_folder(rl_home())
    failed: dict[str, str] = {}
    removed: dict[DiskItem, list[Path]] = {}
    with _lock(rl_home()) as alone:
        if not alone:
            raise ConfigError("another `hermes-rl clean` is removing files; wait until it has ended")
        # Images of a container engine that stopped answering are tried too, so that its error is reported.
        images = (item for item in chosen if item.engine)
        current = {item.location: item for item in (*images, *find_disk_items())}
        for item in (current[item.location] for item in chosen if item.location in current):
            try:
                removed[item] = _move(item)
            except (HermesRLError, OSError) as error:
                failed[item.location] = str(error)
        # On a full disk the database cannot even be read, so this is retried once files are deleted.
        retries = [item for item in removed if item.kind is ItemKind.RUN and _delete_record(item.name)]
        for number, (item, paths) in enumerate(removed.items()):
            report(number, item.name)
            try:
                for path in paths:
                    delete(path)
            except (HermesRLError, OSError) as error:
                failed[item.location] = str(error)
        failed |= {item.location: why for item in retries if (why := _delete_record(item.name))}
    return failed


def _move(item: DiskItem) -> list[Path]:
    """Rename the item's paths, and return the paths to delete."""
    if item.keep:
        raise RemovalError(item.keep)
    if item.engine:
        asyncio.run(remove_baked_image(item.engine, item.name))
    if item.kind is ItemKind.LEFTOVER:
        return list(item.paths)
    with ExitStack() as held:
        for lock in item.locks:
            if not held.enter_context(_lock(lock)):
                raise RemovalError(f"in use: {lock} is locked")
        # Checked again: it may have been resumed before its locks were taken.
        if item.kind is ItemKind.RUN and item.paths and (keep := run_state(item.paths[0])[1]):
            raise RemovalError(keep)
        return [move_away(path) for path in item.paths]


def move_away(path: Path) -> Path:
    """Rename next to the original: the same disk, and no new folder, which a full disk may have no room for."""
    return path.rename(path.with_name(f"{REMOVED}{path.name}-{secrets.token_hex(4)}"))


def delete(path: Path) -> None:
    command = ["/bin/sh", "-c", REMOVE, "sh", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DELETE_SECONDS)
    except subprocess.TimeoutExpired:
        raise RemovalError(f"{path} was not deleted within {DELETE_SECONDS:g} s; the same command continues") from None
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["rm failed"])[-1]
        raise RemovalError(f"some of it is left in {path}: {why}")


def _delete_record(run: str) -> str | None:
    """Delete the run's row, so that `run list` does not show it. Returns the error, if any."""

    async def delete_row() -> None:
        async with open_store(runs_database()) as store:
            await store.forget_run(run)

    try:
        if runs_database().exists():
            asyncio.run(delete_row())
    except HermesRLError as error:
        return str(error)
    return None


@contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Hold a lock for the body; False if another process holds it. A missing file counts as free."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(file)
