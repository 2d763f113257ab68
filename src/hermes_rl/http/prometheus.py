"""Request metrics, and the Prometheus text format.

Always true: requests are counted by route, never by path, so that a client cannot create new series.
"""

import resource
import sys
from collections import Counter
from collections.abc import Mapping
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes_rl.core.histogram import Histogram

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0)
# The unit of `ru_maxrss` in bytes.
PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


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


def metric_lines(name: str, kind: str, about: str, values: Mapping[str, float]) -> list[str]:
    """The lines of one metric; `values` is keyed by formatted labels."""
    return [
        f"# HELP hermes_rl_{name} {about}",
        f"# TYPE hermes_rl_{name} {kind}",
        *(f"hermes_rl_{name}{label} {value:.15g}" for label, value in values.items()),
    ]


def process_lines(requests: Requests) -> list[str]:
    """The metrics of every server: requests, latencies and memory."""
    answered = {
        format_labels(method=method, route=route, status=str(code)): count
        for (method, route, code), count in requests.answered.items()
    }
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT
    return [
        *metric_lines("requests_total", "counter", "Requests by how they were answered.", answered),
        *histogram_lines(
            "request_seconds",
            "Time from a request to the end of its answer.",
            {format_labels(route=route): seconds for route, seconds in requests.seconds.items()},
        ),
        *metric_lines("peak_memory_bytes", "gauge", "The most memory that this process ever held.", {"": peak}),
    ]


def histogram_lines(name: str, about: str, by_label: Mapping[str, Histogram]) -> list[str]:
    """The lines of a histogram; `by_label` is keyed by formatted labels."""
    lines = [f"# HELP hermes_rl_{name} {about}", f"# TYPE hermes_rl_{name} histogram"]
    for label, histogram in by_label.items():
        total, opening = 0, f"{label[:-1]}," if label else "{"
        for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
            total += count
            lines.append(f'hermes_rl_{name}_bucket{opening}le="{bound}"}} {total}')
        lines.append(f"hermes_rl_{name}_sum{label} {histogram.sum:g}")
        lines.append(f"hermes_rl_{name}_count{label} {total}")
    return lines


def format_labels(**format_labels: str) -> str:
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in format_labels.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
