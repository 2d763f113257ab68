"""The way to several APIs over one database: the next one is asked when one cannot be reached.

Always true: all else is hermes_rl.api.client's own Connection, which the chaos is to test.
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp

from hermes_rl.api.client.connection import ApiConnection, ApiUnavailableError


class Event(Enum):
    """What became of a request: it began, a piece of its body was handed over, its answer began, there was none."""

    ASKED = auto()
    SENT = auto()
    ANSWERED = auto()
    FAILED = auto()


# Told of each request by its path, and of how many bytes were sent.
Watcher = Callable[[Event, str, int], None]


class ReplicaConnection(ApiConnection):
    """Begins with the first of the addresses."""

    def __init__(self, urls: Sequence[str]) -> None:
        super().__init__(urls[0])
        self._urls = [url.rstrip("/") for url in urls]
        self.watcher: Watcher = lambda event, path, count: None

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        watching = aiohttp.TraceConfig()
        watching.on_request_start.append(self._on(Event.ASKED))
        watching.on_request_chunk_sent.append(self._on(Event.SENT))
        watching.on_request_end.append(self._on(Event.ANSWERED))
        watching.on_request_exception.append(self._on(Event.FAILED))
        watching.freeze()
        if self._session is not None:
            self._session.trace_configs.append(watching)
        return self

    def _on(self, event: Event) -> Any:
        async def told(_: aiohttp.ClientSession, __: SimpleNamespace, said: Any) -> None:
            self.watcher(event, said.url.path, len(getattr(said, "chunk", b"")))

        return told

    def _unavailable(self, what: str) -> ApiUnavailableError:
        error = super()._unavailable(what)
        self.url = self._urls[(self._urls.index(self.url) + 1) % len(self._urls)]
        return error
