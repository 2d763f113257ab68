"""The reaper: removes what dead owners left behind, on every backend, as their ledgers tell, and nothing else.

A ledger whose lock cannot be had belongs to a living process and is not touched. What could not be removed (a daemon
that is down, a host that does not answer) stays in the ledger for the next time, with the reason shown.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hermes_rl.errors import HermesRLError
from hermes_rl.sandbox.backends import make_backend
from hermes_rl.sandbox.ledger import AbandonedLedger, Entry, abandoned
from hermes_rl.sandbox.protocol import Backend

_log = logging.getLogger(__name__)

AT_ONCE = 8
PERIOD = 300.0
_TIME_FOR_ONE = 60.0


@dataclass(slots=True)
class Reaped:
    """What a round of reaping did. `left` has what could not be removed, and why."""

    owners: int = 0
    removed: list[Entry] = field(default_factory=list)
    left: list[tuple[Entry, str]] = field(default_factory=list)


async def reap(
    directory: Path | None = None,
    *,
    dry_run: bool = False,
    on_entry: Callable[[Entry], object] = lambda _: None,
) -> Reaped:
    """Go through the ledgers of dead owners. With `dry_run` everything is only listed, as removed."""
    reaped = Reaped()
    backends: dict[str, Backend] = {}
    try:
        for ledger in abandoned(directory):
            reaped.owners += 1
            if dry_run:
                reaped.removed += ledger.entries
                ledger.settle(ledger.entries)
            else:
                await _reap_ledger(ledger, backends, reaped, on_entry)
    finally:
        for backend in backends.values():
            await backend.close()
    return reaped


@asynccontextmanager
async def reaping(directory: Path | None = None, *, every: float = PERIOD) -> AsyncIterator[None]:
    """Reap in the background, at once and then now and again, as long as the block lasts."""
    task = asyncio.ensure_future(_reap_again_and_again(directory, every))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _reap_again_and_again(directory: Path | None, every: float) -> None:
    while True:
        try:
            reaped = await reap(directory)
        except (HermesRLError, OSError) as error:
            _log.warning("sandboxes of dead processes could not be removed: %s", error)
        else:
            if reaped.removed:
                _log.info("removed %d sandboxes of %d dead processes", len(reaped.removed), reaped.owners)
            for entry, reason in reaped.left:
                _log.warning("%s, left by a dead process, could not be removed: %s", entry.name, reason)
        await asyncio.sleep(every)


async def _reap_ledger(
    ledger: AbandonedLedger, backends: dict[str, Backend], reaped: Reaped, on_entry: Callable[[Entry], object]
) -> None:
    turns = asyncio.Semaphore(AT_ONCE)
    left: list[Entry] = []

    async def one(entry: Entry) -> None:
        async with turns:
            reason = await _remove(entry, backends)
        if reason is None:
            reaped.removed.append(entry)
        else:
            reaped.left.append((entry, reason))
            left.append(entry)
        on_entry(entry)

    try:
        await asyncio.gather(*(one(entry) for entry in ledger.entries))
    except BaseException:
        ledger.settle(ledger.entries)
        raise
    ledger.settle(left)


async def _remove(entry: Entry, backends: dict[str, Backend]) -> str | None:
    """Remove what is left of one sandbox; the reason when that is not possible now."""
    key = f"{entry.backend} {sorted(entry.settings.items())}"
    try:
        if key not in backends:
            backends[key] = make_backend(entry.backend, entry.settings)
        async with asyncio.timeout(_TIME_FOR_ONE):
            await backends[key].reap(entry.resources)
    except TimeoutError:
        return f"no answer within {_TIME_FOR_ONE:.0f} s"
    except Exception as error:  # noqa: BLE001 - whatever a backend raises, the others' turn comes
        return str(error) or type(error).__name__
    return None
