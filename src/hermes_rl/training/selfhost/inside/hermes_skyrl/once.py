"""Requests that must be done once, however often they are sent.

The SDK sends a request again when its answer got lost, and numbers them for the server to notice; SkyRL does not.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

KEPT = 4096


class Once:
    """Remembers the answers to the last requests, and takes one request at a time."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = asyncio.Lock()

    async def answer(self, key: Hashable, submit: Callable[[], Awaitable[Any]]) -> Any:
        """What `submit` gives, or gave when this key came before. An error is forgotten."""
        async with self._lock:
            if key not in self._answers:
                self._answers[key] = await submit()
                if len(self._answers) > KEPT:
                    self._answers.popitem(last=False)
            return self._answers[key]
