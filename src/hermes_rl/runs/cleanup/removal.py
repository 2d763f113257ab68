"""Remove items from disk.

Always true: each path is renamed while its locks are held, before anything is deleted. After a `kill -9` an item is
whole or gone, and the next scan finds what is left to delete. One process removes at a time.
"""

import asyncio
import fcntl
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hermes_rl.errors import ConfigError, HermesRLError
from hermes_rl.home import rl_home
from hermes_rl.runs.cleanup.plan import Item, Kind
from hermes_rl.runs.cleanup.scan import REMOVED, find, state_of_run
from hermes_rl.runs.places import records
from hermes_rl.sandbox.baked_images import remove_baked_image
from hermes_rl.sandbox.workspaces import REMOVE
from hermes_rl.store.database.store import open_store

DELETE_SECONDS = 3600.0


class RemovalError(HermesRLError):
    """An item, or some of its files, could not be removed; the message says why."""


def remove_all(chosen: Sequence[Item], say: Callable[[int, str], object] = lambda *_: None) -> dict[str, str]:
    """Remove what is still there and not in use; returns why something could not be removed, by location."""
    rl_home().mkdir(parents=True, exist_ok=True)
    failed: dict[str, str] = {}
    removed: dict[Item, list[Path]] = {}
    with _lock(rl_home()) as alone:
        if not alone:
            raise ConfigError("another `hermes-rl clean` is removing files; wait until it has ended")
        # Images of a container engine that stopped answering are tried too, so that its error is reported.
        now = {item.location: item for item in (*(one for one in chosen if one.engine), *find())}
        for item in (now[one.location] for one in chosen if one.location in now):
            try:
                removed[item] = _move(item)
            except (HermesRLError, OSError) as error:
                failed[item.location] = str(error)
        # On a full disk the database cannot even be read: then once more, when there is room.
        again = [item for item in removed if item.kind is Kind.RUN and _forget(item.name)]
        for number, (item, paths) in enumerate(removed.items()):
            say(number, item.name)
            try:
                for path in paths:
                    delete(path)
            except (HermesRLError, OSError) as error:
                failed[item.location] = str(error)
        failed |= {item.location: why for item in again if (why := _forget(item.name))}
    return failed


def _move(item: Item) -> list[Path]:
    """Rename the item's paths, and return what is to be deleted."""
    if item.keep:
        raise RemovalError(item.keep)
    if item.engine:
        asyncio.run(remove_baked_image(item.engine, item.name))
    if item.kind is Kind.LEFTOVER:
        return list(item.paths)
    with ExitStack() as held:
        for lock in item.locks:
            if not held.enter_context(_lock(lock)):
                raise RemovalError(f"in use: {lock} is locked")
        # Checked again: it may have been resumed before its locks were taken.
        if item.kind is Kind.RUN and item.paths and (keep := state_of_run(item.paths[0])[1]):
            raise RemovalError(keep)
        return [move_away(path) for path in item.paths]


def move_away(path: Path) -> Path:
    """Next to the original: the same disk, and no new folder, for which a full disk may have no room."""
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


def _forget(run: str) -> str | None:
    """Delete its row, so that `run list` does not show it; why that was not possible."""

    async def forget() -> None:
        async with open_store(records()) as store:
            await store.forget_run(run)

    try:
        if records().exists():
            asyncio.run(forget())
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
