"""The display of `serve` on standard error: a dashboard on a terminal, otherwise a line every few seconds."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from hermes_rl.console.live_display import LINE_EVERY, REFRESH, LiveDisplay, console, live_panel, write_line
from hermes_rl.console.panel import Panel, format_counts
from hermes_rl.rollout.config import ENDLESS
from hermes_rl.rollout.display import MAX_SPARKLINE_SCORES, count_rows
from hermes_rl.rollout.in_flight import RolloutsInFlight
from hermes_rl.rollout.metrics import RolloutCounts

RATE_WINDOW = 60.0


class DeliveryStats(Protocol):
    """The delivery figures shown; `away_since` is a time.time value."""

    @property
    def spooled(self) -> int: ...
    @property
    def posted(self) -> int: ...
    @property
    def refused(self) -> int: ...
    @property
    def away_since(self) -> float | None: ...
    @property
    def last_error(self) -> str | None: ...


@dataclass(slots=True)
class ServeStats:
    """The state of a serving environment; `max_groups` is the limit on groups in flight."""

    environment: str
    api: str
    model: str
    total_steps: int
    tally: RolloutCounts
    max_groups: int
    group_size: int
    state: str = "starting"
    version: int | None = None
    steps: int = 0
    """Batches trained on; more than versions if some had nothing to train on."""
    groups_running: int = 0
    groups_begun: int = 0
    waiting: str | None = None
    engines: str | None = None
    """Load of the inference engines, where concurrency adapts to it."""
    outage: Callable[[], str] = lambda: ""
    """The pause for endpoints that do not answer, in words; empty while there is none."""
    in_flight: RolloutsInFlight = field(default_factory=RolloutsInFlight)
    delivery: DeliveryStats | None = None
    withheld_by_api: Mapping[str, int] = field(default_factory=dict)
    evaluating: str | None = None
    evaluated: str | None = None
    _finished: deque[float] = field(default_factory=deque)
    _began: float = field(default_factory=time.monotonic)

    @property
    def running(self) -> int:
        return self.groups_running * self.group_size

    def finished(self) -> None:
        self._finished.append(time.monotonic())

    def rate(self) -> float:
        """Groups per second over the last minute."""
        now = time.monotonic()
        while self._finished and self._finished[0] < now - RATE_WINDOW:
            self._finished.popleft()
        return len(self._finished) / max(min(RATE_WINDOW, now - self._began), 1.0)


def stats_rows(stats: ServeStats) -> dict[str, str]:
    """The dashboard as text by label; empty rows are left out."""
    tally, delivery = stats.tally, stats.delivery
    step = f", step {stats.steps}" if stats.steps > (stats.version or 0) else ""
    version = "not known yet" if stats.version is None else f"version {stats.version}{step} of {stats.total_steps}"
    texts = {
        "state": stats.state,
        "paused": stats.outage(),
        "waiting": stats.waiting or "",
        "policy": version,
        "rollouts": f"{stats.running} running of {stats.groups_begun * stats.group_size} started; "
        f"{stats.groups_running} of {stats.max_groups} groups at once",
        "turns": stats.in_flight.text,
        "engines": stats.engines or "",
        "groups": f"{tally.groups} made, {stats.rate():.2f} per second",
        **count_rows(tally),
        "delivery": "" if delivery is None else delivery_text(delivery),
        "API left out": format_counts(stats.withheld_by_api),
        "evaluation": f"running, {stats.evaluating}" if stats.evaluating else stats.evaluated or "",
        "API": stats.api,
        "model": stats.model,
    }
    return {label: text for label, text in texts.items() if text}


def delivery_text(delivery: DeliveryStats) -> str:
    text = f"{delivery.posted} posted, {delivery.refused} refused, {delivery.spooled} in the spool"
    if delivery.away_since is not None:
        text += f"; the API has not answered for {time.time() - delivery.away_since:.0f} s"
    if delivery.last_error and (delivery.away_since is not None or delivery.refused):
        text += f" ({delivery.last_error})"
    return text


def status_line(stats: ServeStats) -> str:
    left_out = {"API", "model"}
    return f"serve {stats.environment}  " + " · ".join(
        text if label == "state" else f"{label} {text}"
        for label, text in stats_rows(stats).items()
        if label not in left_out
    )


def stats_panel(stats: ServeStats) -> Panel:
    """The dashboard for a terminal; the bar shows the trainer's steps out of `total_steps`."""
    away = stats.delivery is not None and stats.delivery.away_since is not None
    return Panel(
        f"serve · {stats.environment}",
        stats_rows(stats),
        done=None if stats.version is None else max(stats.version, stats.steps),
        total=stats.total_steps if stats.total_steps < ENDLESS else None,
        rewards=stats.tally.scores[-MAX_SPARKLINE_SCORES:],
        styles={"delivery": "red"} if away else {},
    )


@asynccontextmanager
async def show_stats(stats: ServeStats) -> AsyncIterator[None]:
    """Show the stats while the block runs. Panels are built on the event loop, so the stats cannot change meanwhile."""
    screen = console()
    if not screen.is_terminal:
        printing = asyncio.create_task(_print_lines(stats))
        try:
            yield
        finally:
            printing.cancel()
            write_line(status_line(stats))
        return
    with live_panel(screen, stats_panel(stats)) as shown:
        drawing = asyncio.create_task(_draw(stats, shown))
        try:
            yield
        finally:
            drawing.cancel()
            shown.panel = stats_panel(stats)


async def _draw(stats: ServeStats, shown: LiveDisplay) -> None:
    while True:
        shown.panel = stats_panel(stats)
        await asyncio.sleep(REFRESH)


async def _print_lines(stats: ServeStats) -> None:
    while True:
        write_line(status_line(stats))
        await asyncio.sleep(LINE_EVERY)
