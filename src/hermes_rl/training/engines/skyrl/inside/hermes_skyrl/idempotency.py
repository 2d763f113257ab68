"""Idempotent requests: a resent request is executed once.

The SDK resends a request when its response is lost, with the same sequence number; SkyRL ignores the number.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

MAX_ANSWERS = 4096


class RequestCache:
    """Caches the answers to recent requests, and runs one request at a time."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = asyncio.Lock()

    async def answer(self, key: Hashable, submit: Callable[[], Awaitable[Any]]) -> Any:
        """The result of `submit`, cached by key. Errors are not cached."""
        async with self._lock:
            if key not in self._answers:
                self._answers[key] = await submit()
                if len(self._answers) > MAX_ANSWERS:
                    self._answers.popitem(last=False)
            return self._answers[key]
