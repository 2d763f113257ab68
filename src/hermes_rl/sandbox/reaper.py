"""The reaper: removes sandboxes that dead owners left behind. It touches only what their ledgers list.

A locked ledger belongs to a living process and is skipped. Entries that cannot be removed (daemon down, host
unreachable) stay in the ledger for the next round, and the reason is reported.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hermes_rl.core.errors import HermesRLError
from hermes_rl.sandbox.backends.registry import make_backend
from hermes_rl.sandbox.ledger import AbandonedLedger, LedgerEntry, abandoned_ledgers
from hermes_rl.sandbox.protocol import Backend

_log = logging.getLogger(__name__)

MAX_CONCURRENT = 8
PERIOD = 300.0
_ENTRY_TIMEOUT = 60.0


@dataclass(slots=True)
class ReapResult:
    """The result of one round. `left` lists the entries that could not be removed, with the reason."""

    owners: int = 0
    removed: list[LedgerEntry] = field(default_factory=list)
    left: list[tuple[LedgerEntry, str]] = field(default_factory=list)


async def reap(
    directory: Path | None = None,
    *,
    dry_run: bool = False,
    on_entry: Callable[[LedgerEntry], object] = lambda _: None,
) -> ReapResult:
    """Remove what the ledgers of dead owners list. With `dry_run` entries are only listed, as removed."""
    reaped = ReapResult()
    backends: dict[str, Backend] = {}
    try:
        for ledger in abandoned_ledgers(directory):
            reaped.owners += 1
            if dry_run:
                reaped.removed += ledger.entries
                ledger.finish(ledger.entries)
            else:
                await _reap_ledger(ledger, backends, reaped, on_entry)
    finally:
        for backend in backends.values():
            await backend.close()
    return reaped


@asynccontextmanager
async def reap_periodically(directory: Path | None = None, *, every: float = PERIOD) -> AsyncIterator[None]:
    """Reap in the background while the block runs: immediately, then every `every` seconds."""
    task = asyncio.ensure_future(_reap_loop(directory, every))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _reap_loop(directory: Path | None, every: float) -> None:
    while True:
        try:
            reaped = await reap(directory)
        except (HermesRLError, OSError) as error:
            _log.warning("cannot remove sandboxes of dead processes: %s", error)
        else:
            if reaped.removed:
                _log.info("removed %d sandboxes of %d dead processes", len(reaped.removed), reaped.owners)
            for entry, reason in reaped.left:
                _log.warning("cannot remove %s, left by a dead process: %s", entry.name, reason)
        await asyncio.sleep(every)


async def _reap_ledger(
    ledger: AbandonedLedger, backends: dict[str, Backend], reaped: ReapResult, on_entry: Callable[[LedgerEntry], object]
) -> None:
    slots = asyncio.Semaphore(MAX_CONCURRENT)
    left: list[LedgerEntry] = []

    async def remove_entry(entry: LedgerEntry) -> None:
        async with slots:
            reason = await _remove(entry, backends)
        if reason is None:
            reaped.removed.append(entry)
        else:
            reaped.left.append((entry, reason))
            left.append(entry)
        on_entry(entry)

    try:
        await asyncio.gather(*(remove_entry(entry) for entry in ledger.entries))
    except BaseException:
        ledger.finish(ledger.entries)
        raise
    ledger.finish(left)


async def _remove(entry: LedgerEntry, backends: dict[str, Backend]) -> str | None:
    """Remove what is left of one sandbox. Returns the reason if that fails."""
    key = f"{entry.backend} {sorted(entry.settings.items())}"
    try:
        if key not in backends:
            backends[key] = make_backend(entry.backend, entry.settings)
        async with asyncio.timeout(_ENTRY_TIMEOUT):
            await backends[key].reap(entry.resources)
    except TimeoutError:
        return f"no answer within {_ENTRY_TIMEOUT:.0f} s"
    except Exception as error:  # noqa: BLE001 - one failing backend must not stop the others
        return str(error) or type(error).__name__
    return None
