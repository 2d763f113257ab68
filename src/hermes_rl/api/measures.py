"""Requests as they were answered, and the text that Prometheus reads.

Always true: a request is counted by the route that took it, never by its path, so that nobody can make series at will.
"""

import resource
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes_rl.store.database import Status, Tally

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
# What `ru_maxrss` is counted in.
PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


class Requests:
    """Counts by method, route and status, and times by route."""

    def __init__(self) -> None:
        self.answered: Counter[tuple[str, str, int]] = Counter()
        self.seconds: Counter[str] = Counter()
        self.within: dict[str, list[int]] = {}

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        self.answered[method, route, status] += 1
        self.seconds[route] += seconds  # type: ignore[assignment]
        counts = self.within.setdefault(route, [0] * (len(BOUNDS) + 1))
        counts[sum(seconds > bound for bound in BOUNDS)] += 1


class Measured:
    """ASGI middleware that notes every request."""

    def __init__(self, app: ASGIApp, requests: Requests) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500
        begin = perf_counter()

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path_format", "none")
            self._requests.note(scope["method"], route, status, perf_counter() - begin)


def exposition(requests: Requests, status: Status, tallies: Sequence[Tally], names: Mapping[int, str]) -> str:
    """All figures in the text format of Prometheus."""

    def environment(number: int, **kinds: str) -> str:
        return labels(environment=names.get(number, ""), number=str(number), **kinds)

    lines = series("policy_version", "gauge", "The policy's version.", {"": status.version})
    if status.capacity is not None:
        about = "Rollouts that may begin without growing stale."
        lines += series("capacity_rollouts", "gauge", about, {"": status.capacity})
    queued = {
        environment(number, state=state): count
        for number, part in status.backlog.items()
        for state, count in (("waiting", part.waiting), ("leased", part.leased))
    }
    lines += series("queued_rollouts", "gauge", "Rollouts in the queue.", queued)
    running = {environment(number): count for number, count in status.running.items()}
    lines += series("running_rollouts", "gauge", "Rollouts in the making, as environments say.", running)
    ended = {
        environment(tally.environment, outcome=tally.outcome, cause=tally.cause): tally.rollouts for tally in tallies
    }
    lines += series("ended_rollouts_total", "counter", "Rollouts that left the queue.", ended)
    return "\n".join(lines + process_lines(requests)) + "\n"


def series(name: str, kind: str, about: str, values: Mapping[str, float]) -> list[str]:
    """The lines of one figure, by its labels."""
    return [
        f"# HELP hermes_rl_{name} {about}",
        f"# TYPE hermes_rl_{name} {kind}",
        *(f"hermes_rl_{name}{labelled} {value:.15g}" for labelled, value in values.items()),
    ]


def process_lines(requests: Requests) -> list[str]:
    """What can be said of any server: its requests, their times, its memory."""
    answered = {
        labels(method=method, route=route, status=str(code)): count
        for (method, route, code), count in requests.answered.items()
    }
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT
    return [
        *series("requests_total", "counter", "Requests by how they were answered.", answered),
        *_histogram(requests),
        *series("peak_memory_bytes", "gauge", "The most memory that this process ever held.", {"": peak}),
    ]


def _histogram(requests: Requests) -> list[str]:
    name = "hermes_rl_request_seconds"
    lines = [f"# HELP {name} Time from a request to the end of its answer.", f"# TYPE {name} histogram"]
    for route, counts in requests.within.items():
        total = 0
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), counts, strict=True):
            total += count
            lines.append(f"{name}_bucket{labels(route=route, le=bound)} {total}")
        lines.append(f"{name}_sum{labels(route=route)} {requests.seconds[route]:g}")
        lines.append(f"{name}_count{labels(route=route)} {total}")
    return lines


def labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
