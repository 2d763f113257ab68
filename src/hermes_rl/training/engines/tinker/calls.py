"""Requests to one Tinker server, with health probes while a request is in flight.

Always true: every SDK failure is an EngineError; a step may take any time, but a server that is unreachable for longer
than `patience` seconds fails the request.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import aiohttp
import tinker

from hermes_rl.training.engines.protocol import EngineError
from hermes_rl.training.utilization import BusyTimer

T = TypeVar("T")
PROBE_INTERVAL_S = 5.0
PROBE_TIMEOUT_S = 10.0
RETRY_INTERVAL_S = 1.0
MAX_ERROR_CHARS = 500


class Calls:
    """`base_url` is None for hosted Tinker, which is assumed to be up."""

    def __init__(self, base_url: str | None, patience: float, busy: BusyTimer) -> None:
        self._base_url, self._patience, self._busy = base_url, patience, busy
        self.server = base_url or "hosted Tinker"

    async def run(self, action: str, request: Awaitable[T]) -> T:
        """Await a request; raises EngineError when it fails or the server is unreachable for too long."""
        working = asyncio.ensure_future(request)
        probing = asyncio.create_task(self._wait_until_lost())
        try:
            with self._busy.request():
                await asyncio.wait({working, probing}, return_when=asyncio.FIRST_COMPLETED)
                if not working.done():
                    raise EngineError(f"cannot {action}: {self.server} has been unreachable for {self._patience:.0f} s")
                return working.result()
        except (tinker.TinkerError, ValueError, OSError, TimeoutError, RuntimeError) as error:
            permanent = isinstance(error, tinker.AuthenticationError | tinker.PermissionDeniedError)
            raise EngineError(f"cannot {action} at {self.server}: {_short(error)}", permanent=permanent) from error
        finally:
            working.cancel()
            probing.cancel()
            await asyncio.wait({working, probing})

    async def wait_until_up(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._patience
        while not await self._answers():
            if loop.time() > end:
                raise EngineError(
                    f"no engine answers at {self.server}; start one with `hermes-rl engine start`, or set "
                    "--tinker.base_url to its address",
                    permanent=True,
                )
            await asyncio.sleep(RETRY_INTERVAL_S)

    async def _wait_until_lost(self) -> None:
        loop = asyncio.get_running_loop()
        last_answer = loop.time()
        while loop.time() - last_answer < self._patience:
            await asyncio.sleep(PROBE_INTERVAL_S)
            if await self._answers():
                last_answer = loop.time()

    async def _answers(self) -> bool:
        if self._base_url is None:
            return True
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)) as session,
                session.get(f"{self._base_url.rstrip('/')}/api/v1/healthz") as response,
            ):
                return response.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False


def _short(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= MAX_ERROR_CHARS else text[:MAX_ERROR_CHARS] + "…"
