"""What a person sees of `serve`, on standard error: a dashboard on a terminal, elsewhere a line now and then."""

import asyncio
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from hermes_rl.environment.display import LINE_EVERY, console, drawn_on, short
from hermes_rl.environment.metrics import Tally

if TYPE_CHECKING:
    from rich.console import RenderableType

REFRESH = 0.5
RATE_OVER = 60.0
CAUSES_SHOWN = 4


class Delivered(Protocol):
    """What is told of a delivery; `away_since` is by time.time."""

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
class Board:
    """The state of a serving environment; `most` is how many groups run at once."""

    environment: str
    api: str
    model: str
    total_steps: int
    tally: Tally
    most: int
    group_size: int
    state: str = "starting"
    version: int | None = None
    groups_running: int = 0
    groups_begun: int = 0
    waiting: str | None = None
    delivery: Delivered | None = None
    withheld_there: Mapping[str, int] = field(default_factory=dict)
    evaluating: str | None = None
    evaluated: str | None = None
    _finished: deque[float] = field(default_factory=deque)
    _began: float = field(default_factory=time.monotonic)

    @property
    def running(self) -> int:
        return self.groups_running * self.group_size

    def finished(self) -> None:
        """One more group was made."""
        self._finished.append(time.monotonic())

    def rate(self) -> float:
        """Groups a second over the last minute."""
        now = time.monotonic()
        while self._finished and self._finished[0] < now - RATE_OVER:
            self._finished.popleft()
        return len(self._finished) / max(min(RATE_OVER, now - self._began), 1.0)


def rows(board: Board) -> dict[str, str]:
    """The dashboard as text, by label; what there is nothing to say about is left out."""
    tally, delivery = board.tally, board.delivery
    version = "not known yet" if board.version is None else f"version {board.version} of {board.total_steps}"
    mean = "–" if tally.mean is None else f"{tally.mean:.3f}"
    said = {
        "state": board.state,
        "waiting": board.waiting or "",
        "policy": version,
        "rollouts": f"{board.running} running of {board.groups_begun * board.group_size} granted so far; "
        f"{board.groups_running} of {board.most} groups at once",
        "groups": f"{tally.groups} made, {board.rate():.2f} a second",
        "score": f"mean {mean} over {len(tally.scores)} scored of {tally.rollouts} rollouts",
        "not scored": _counts(tally.failures),
        "withheld": _counts(tally.withheld_groups),
        "delivery": "" if delivery is None else delivered(delivery),
        "API left out": _counts(Counter(board.withheld_there)),
        "evaluation": f"running, {board.evaluating}" if board.evaluating else board.evaluated or "",
        "API": board.api,
        "model": board.model,
    }
    return {label: text for label, text in said.items() if text}


def delivered(delivery: Delivered) -> str:
    """How the delivery goes."""
    text = f"{delivery.posted} posted, {delivery.refused} refused, {delivery.spooled} in the spool"
    if delivery.away_since is not None:
        text += f"; the API is away for {time.time() - delivery.away_since:.0f} s"
    if delivery.last_error and (delivery.away_since is not None or delivery.refused):
        text += f" ({delivery.last_error})"
    return text


def line(board: Board) -> str:
    """The dashboard on one line."""
    left_out = {"API", "model"}
    return f"serve {board.environment}  " + " · ".join(
        text if label == "state" else f"{label} {text}" for label, text in rows(board).items() if label not in left_out
    )


def picture(board: Board) -> "RenderableType":
    """The dashboard for a terminal."""
    from rich.panel import Panel
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    away = board.delivery is not None and board.delivery.away_since is not None
    colours = {"waiting": "yellow", "not scored": "red", "API left out": "yellow", "delivery": "red" if away else ""}
    for label, text in rows(board).items():
        table.add_row(label, short(text), style=colours.get(label))
    return Panel(table, title=f"serve · {board.environment}", title_align="left", expand=False)


@asynccontextmanager
async def showing(board: Board) -> AsyncIterator[None]:
    """Show the board while the block runs. It is drawn on the event loop, where nobody changes it meanwhile."""
    screen = console()
    if not screen.is_terminal:
        telling = asyncio.create_task(_tell(board))
        try:
            yield
        finally:
            telling.cancel()
            _say(board)
        return
    from rich.live import Live

    with drawn_on(screen), Live(picture(board), console=screen, auto_refresh=False) as live:
        drawing = asyncio.create_task(_draw(board, live.update))
        try:
            yield
        finally:
            drawing.cancel()
            live.update(picture(board), refresh=True)


class _Update(Protocol):
    def __call__(self, renderable: "RenderableType", *, refresh: bool = False) -> None: ...


async def _draw(board: Board, update: _Update) -> None:
    while True:
        update(picture(board), refresh=True)
        await asyncio.sleep(REFRESH)


async def _tell(board: Board) -> None:
    while True:
        _say(board)
        await asyncio.sleep(LINE_EVERY)


def _say(board: Board) -> None:
    sys.stderr.write(" ".join(line(board).split()) + "\n")
    sys.stderr.flush()


def _counts(counts: Counter[str]) -> str:
    shown = [f"{cause} {count}" for cause, count in counts.most_common(CAUSES_SHOWN)]
    more = len(counts) - CAUSES_SHOWN
    return ", ".join(shown) + (f" and {more} other causes" if more > 0 else "")
