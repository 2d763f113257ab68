"""Request counts and latencies of a server.

Always true: requests are counted by route, never by path, so that a client cannot create new series.
"""

from collections import Counter
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes_rl.core.histogram import Histogram

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0)


class Requests:
    """Request counts by method, route and status, and latencies by route."""

    def __init__(self) -> None:
        self.answered: Counter[tuple[str, str, int]] = Counter()
        self.seconds: dict[str, Histogram] = {}

    def record(self, method: str, route: str, status: int, seconds: float) -> None:
        self.answered[method, route, status] += 1
        self.seconds.setdefault(route, Histogram(BUCKETS)).observe(seconds)


class MetricsMiddleware:
    """ASGI middleware that records every request."""

    def __init__(self, app: ASGIApp, requests: Requests) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500
        begin = perf_counter()

        async def recording_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, recording_send)
        finally:
            route = getattr(scope.get("route"), "path_format", "none")
            self._requests.record(scope["method"], route, status, perf_counter() - begin)
