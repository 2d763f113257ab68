"""The pool: limits how many sandboxes are live and how many are starting, and closes every sandbox it handed out.

Backends that are not given are opened when the first sandbox is needed: a game needs none at all.
A start that fails with an infrastructure error is retried, on another backend instance if there are several.
Sandboxes for verification have capacity of their own: otherwise rollouts that all wait for verification would deadlock.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hermes_rl import tracing
from hermes_rl.core.errors import ConfigError, SandboxError
from hermes_rl.sandbox.protocol import PROBE_TIMEOUT, Backend, Sandbox
from hermes_rl.sandbox.spec import Capabilities, SandboxSpec
from hermes_rl.sandbox.subprocess_vfork import shield_until_done

_log = logging.getLogger(__name__)

START_ATTEMPTS = 3
_RETRY_PAUSE = 0.2
# How long a backend that failed is avoided while others work.
_COOLDOWN = 30.0


@dataclass(slots=True)
class _PoolBackend:
    backend: Backend
    live: int = 0
    avoid_until: float = 0.0


class SandboxPool:
    """Sandboxes of one or more backends. `start_failures` counts failed start attempts by cause.

    `hidden` are files of this machine that none of them shows, in addition to those of each spec. `opening` opens the
    backends, if they are not given.
    """

    def __init__(
        self,
        backend: Backend | Sequence[Backend] = (),
        *,
        opening: Callable[[], Awaitable[Sequence[Backend]]] | None = None,
        max_live: int = 64,
        max_starting: int = 8,
        start_timeout: float = 120.0,
        hidden: Sequence[Path] = (),
    ) -> None:
        self._slots = [_PoolBackend(each) for each in (backend if isinstance(backend, Sequence) else [backend])]
        self._opening = opening
        self._open_lock = asyncio.Lock()
        self.open_error: ConfigError | SandboxError | None = None
        """Why the backends could not be opened. They are tried once."""
        self.close_failures = 0
        self.start_failures: Counter[str] = Counter()
        self._start_timeout = start_timeout
        self._hidden = tuple(hidden)
        self._capacity = {False: asyncio.Semaphore(max_live), True: asyncio.Semaphore(max(max_live // 4, 1))}
        self._starting = asyncio.Semaphore(max_starting)
        self._live: dict[Sandbox, tuple[_PoolBackend, bool]] = {}
        self._closed = False

    @property
    def is_open(self) -> bool:
        """Whether the backends are known, and with them `backend` and `capabilities`."""
        return bool(self._slots)

    @property
    def isolates_files(self) -> bool:
        """Whether nothing that runs in a sandbox touches the files of this machine."""
        return not self.is_open or self.capabilities.isolates_files

    @property
    def backend(self) -> Backend:
        return self._slots[0].backend

    @property
    def capabilities(self) -> Capabilities:
        return self.backend.capabilities

    @property
    def live(self) -> int:
        return len(self._live)

    async def open(self) -> None:
        """Open the backends, unless they are open."""
        if self._opening is not None and not self.is_open:
            async with self._open_lock:
                await self._open_once(self._opening)

    async def _open_once(self, opening: Callable[[], Awaitable[Sequence[Backend]]]) -> None:
        if self.open_error is not None:
            raise self.open_error
        if not self.is_open:
            try:
                self._slots = [_PoolBackend(each) for each in await opening()]
            except (ConfigError, SandboxError) as error:
                self.open_error = error
                raise

    @asynccontextmanager
    async def sandbox(self, spec: SandboxSpec | None = None, *, verifying: bool = False) -> AsyncIterator[Sandbox]:
        sandbox = await self.acquire(spec, verifying=verifying)
        try:
            yield sandbox
        finally:
            await self.release(sandbox)

    async def acquire(self, spec: SandboxSpec | None = None, *, verifying: bool = False) -> Sandbox:
        """Start a sandbox once there is capacity. SandboxError if all attempts fail."""
        try:
            await self.open()
        except ConfigError as error:
            # A setting that is wrong is no fault of the rollout that needed it first.
            raise SandboxError("start", str(error)) from error
        if self._hidden:
            spec = spec or SandboxSpec()
            spec = replace(spec, hidden=(*spec.hidden, *self._hidden))
        with tracing.span("sandbox") as span:
            began = time.monotonic()
            await self._capacity[verifying].acquire()
            if span.on:
                waited, image = time.monotonic() - began, spec.image if spec else None
                span.set_attributes(backend=self.backend.name, verifying=verifying, waited_seconds=waited, image=image)
            try:
                sandbox, slot = await self._start(spec)
            except BaseException:
                self._capacity[verifying].release()
                raise
        slot.live += 1
        self._live[sandbox] = (slot, verifying)
        if self._closed:
            await self.release(sandbox)
            self._require_open()
        return sandbox

    async def works(self, spec: SandboxSpec | None) -> bool:
        """Whether a new sandbox starts and runs a command now."""
        try:
            async with self.sandbox(spec, verifying=True) as sandbox:
                return (await sandbox.exec("true", timeout=PROBE_TIMEOUT)).exit_code == 0
        except SandboxError:
            return False

    async def release(self, sandbox: Sandbox) -> None:
        """Close a sandbox and free its capacity. Releasing twice is harmless; a close that fails is logged."""
        if sandbox in self._live:
            slot, verifying = self._live.pop(sandbox)
            await shield_until_done(self._close_sandbox(sandbox, slot, self._capacity[verifying]))

    async def close(self) -> None:
        """Close all open sandboxes; nothing can be acquired afterwards."""
        self._closed = True
        await asyncio.gather(*(self.release(sandbox) for sandbox in tuple(self._live)))

    async def _start(self, spec: SandboxSpec | None) -> tuple[Sandbox, _PoolBackend]:
        for attempt in range(1, START_ATTEMPTS + 1):
            async with self._starting:
                self._require_open()
                slot = self._choose_slot()
                try:
                    return await self._start_with_timeout(slot.backend, spec), slot
                except SandboxError as error:
                    self.start_failures[error.cause] += 1
                    slot.avoid_until = time.monotonic() + _COOLDOWN
                    if attempt == START_ATTEMPTS:
                        raise
                    _log.info("retrying: a %s sandbox failed to start: %s", slot.backend.name, error)
            await asyncio.sleep(_RETRY_PAUSE * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    async def _start_with_timeout(self, backend: Backend, spec: SandboxSpec | None) -> Sandbox:
        try:
            async with asyncio.timeout(self._start_timeout):
                return await backend.start(spec)
        except TimeoutError:
            raise SandboxError(
                "start_timeout", f"a {backend.name} sandbox was not ready after {self._start_timeout:g} s"
            ) from None

    def _choose_slot(self) -> _PoolBackend:
        """The backend with the fewest sandboxes, preferring those that did not fail recently."""
        now = time.monotonic()
        healthy = [slot for slot in self._slots if slot.avoid_until <= now]
        return min(healthy or self._slots, key=lambda slot: slot.live)

    async def _close_sandbox(self, sandbox: Sandbox, slot: _PoolBackend, capacity: asyncio.Semaphore) -> None:
        try:
            await sandbox.close()
        except Exception:  # noqa: BLE001 - whatever a backend raises, the capacity is freed
            self.close_failures += 1
            _log.exception("cannot close a %s sandbox", slot.backend.name)
        finally:
            slot.live -= 1
            capacity.release()

    def _require_open(self) -> None:
        if self._closed:
            raise SandboxError("closed", "the sandbox pool was closed")
