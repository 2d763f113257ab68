"""Requests as they were answered, and the text that Prometheus reads.

Always true: a request is counted by the route that took it, never by its path, so that nobody can make series at will.
"""

import resource
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes_rl.store.database.intake import Histogram, Intake
from hermes_rl.store.database.listing import Status, Tally

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0)
MOST_BEHIND = 16
# What `ru_maxrss` is counted in.
PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


class Requests:
    """Counts by method, route and status, and times by route."""

    def __init__(self) -> None:
        self.answered: Counter[tuple[str, str, int]] = Counter()
        self.seconds: dict[str, Histogram] = {}

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        self.answered[method, route, status] += 1
        self.seconds.setdefault(route, Histogram(BOUNDS)).note(seconds)


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


def exposition(
    requests: Requests,
    status: Status,
    tallies: Sequence[Tally],
    names: Mapping[int, str],
    *,
    intake: Intake,
    versions: Mapping[int, int],
) -> str:
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
    groups = {
        environment(number, state=state): count
        for number, part in status.backlog.items()
        for state, count in (("waiting", part.waiting_groups), ("leased", part.leased_groups))
    }
    lines += series("queued_groups", "gauge", "Groups in the queue.", groups)
    behind: Counter[str] = Counter()
    for version, count in versions.items():
        late = max(0, status.version - version)
        behind[labels(behind=str(late) if late < MOST_BEHIND else f"{MOST_BEHIND}+")] += count
    about = "Rollouts in the queue by how many versions their oldest token is behind."
    lines += series("queued_staleness_rollouts", "gauge", about, behind)
    running = {environment(number): count for number, count in status.running.items()}
    lines += series("running_rollouts", "gauge", "Rollouts in the making, as environments say.", running)
    wanted = {environment(number): count for number, count in status.wanted.items()}
    lines += series("wanted_rollouts", "gauge", "Rollouts that environments asked for and were not granted.", wanted)
    for name, about in (("rollouts", "Rollouts that left the queue."), ("groups", "Groups that left the queue.")):
        ended = {
            environment(tally.environment, outcome=tally.outcome, cause=tally.cause): getattr(tally, name)
            for tally in tallies
        }
        lines += series(f"ended_{name}_total", "counter", about, ended)
    return "\n".join(lines + _came_in(intake, environment) + process_lines(requests)) + "\n"


def _came_in(intake: Intake, environment: Callable[..., str]) -> list[str]:
    """What this process was handed, since it started."""
    lines = []
    for name, about, counts in (
        ("received_groups_total", "Groups that came in, each once.", intake.groups),
        ("received_bytes_total", "Bytes of them.", intake.bytes),
        ("received_completion_tokens_total", "Tokens that their rollouts were completed with.", intake.tokens),
    ):
        lines += series(name, "counter", about, {environment(number): count for number, count in counts.items()})
    failures = {
        environment(number, whose=whose, cause=cause): count
        for (number, whose, cause), count in intake.failures.items()
    }
    lines += series("failed_rollouts_total", "counter", "Rollouts without a score, by whose fault.", failures)
    about = "How long rollouts took, from their beginning to their score."
    lines += histogram("rollout_seconds", about, {_inner(environment(n)): one for n, one in intake.seconds.items()})
    about = "Scores of rollouts."
    lines += histogram("rollout_score", about, {_inner(environment(n)): one for n, one in intake.scores.items()})
    return lines


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
        *histogram(
            "request_seconds",
            "Time from a request to the end of its answer.",
            {_inner(labels(route=route)): one for route, one in requests.seconds.items()},
        ),
        *series("peak_memory_bytes", "gauge", "The most memory that this process ever held.", {"": peak}),
    ]


def histogram(name: str, about: str, by_label: Mapping[str, Histogram]) -> list[str]:
    """The lines of a histogram; its labels are given without their braces."""
    lines = [f"# HELP hermes_rl_{name} {about}", f"# TYPE hermes_rl_{name} histogram"]
    for label, one in by_label.items():
        total, before = 0, f"{label}," if label else ""
        for bound, count in zip((*map(str, one.bounds), "+Inf"), one.counts, strict=True):
            total += count
            lines.append(f'hermes_rl_{name}_bucket{{{before}le="{bound}"}} {total}')
        around = f"{{{label}}}" if label else ""
        lines.append(f"hermes_rl_{name}_sum{around} {one.sum:g}")
        lines.append(f"hermes_rl_{name}_count{around} {total}")
    return lines


def _inner(labelled: str) -> str:
    return labelled[1:-1]


def labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
