"""Requests to one Tinker server, watched: while one is under way it is looked whether the server still answers.

Always true: every failure of the SDK is an EngineError; a server that is away for longer than `patience` is a failure,
however long a step may take.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import aiohttp
import tinker

from hermes_rl.training.busy import Busy
from hermes_rl.training.engine import EngineError

T = TypeVar("T")
PROBE_EVERY = 5.0
PROBE_TIME = 10.0
LOOK_AGAIN = 1.0
SHOWN = 500


class Calls:
    """`base_url` is None for hosted Tinker, which is taken to be there."""

    def __init__(self, base_url: str | None, patience: float, busy: Busy) -> None:
        self._base_url, self._patience, self._busy = base_url, patience, busy
        self.place = base_url or "hosted Tinker"

    async def made(self, what: str, request: Awaitable[T]) -> T:
        """What a request gives; EngineError where it fails, or where the server has been away for too long."""
        working = asyncio.ensure_future(request)
        watching = asyncio.create_task(self._away_for_too_long())
        try:
            with self._busy.request():
                await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
                if not working.done():
                    raise EngineError(f"cannot {what}: {self.place} has been away for {self._patience:.0f} s")
                return working.result()
        except (tinker.TinkerError, ValueError, OSError, TimeoutError, RuntimeError) as error:
            lasting = isinstance(error, tinker.AuthenticationError | tinker.PermissionDeniedError)
            raise EngineError(f"cannot {what} at {self.place}: {_short(error)}", lasting=lasting) from error
        finally:
            working.cancel()
            watching.cancel()
            await asyncio.wait({working, watching})

    async def wait_until_up(self) -> None:
        """Return once the server answers."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._patience
        while not await self._answers():
            if loop.time() > end:
                raise EngineError(
                    f"no engine answers at {self.place}; start one with `hermes-rl engine start`, or set "
                    "--tinker.base_url to its address",
                    lasting=True,
                )
            await asyncio.sleep(LOOK_AGAIN)

    async def _away_for_too_long(self) -> None:
        loop = asyncio.get_running_loop()
        heard = loop.time()
        while loop.time() - heard < self._patience:
            await asyncio.sleep(PROBE_EVERY)
            if await self._answers():
                heard = loop.time()

    async def _answers(self) -> bool:
        if self._base_url is None:
            return True
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PROBE_TIME)) as session,
                session.get(f"{self._base_url.rstrip('/')}/api/v1/healthz") as response,
            ):
                return response.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False


def _short(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"
