"""What a person sees of `serve`, on standard error: a dashboard on a terminal, elsewhere a line now and then."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from hermes_rl.environment.config import ENDLESS
from hermes_rl.environment.display import NEWEST, tally_rows
from hermes_rl.environment.metrics import Tally
from hermes_rl.terminal.look import Look, counts
from hermes_rl.terminal.screen import LINE_EVERY, REFRESH, Drawing, console, drawing, say

RATE_OVER = 60.0


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
    engines: str | None = None
    """How they bear what is in flight, where that follows them."""
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
    said = {
        "state": board.state,
        "waiting": board.waiting or "",
        "policy": version,
        "rollouts": f"{board.running} running of {board.groups_begun * board.group_size} granted so far; "
        f"{board.groups_running} of {board.most} groups at once",
        "engines": board.engines or "",
        "groups": f"{tally.groups} made, {board.rate():.2f} a second",
        **tally_rows(tally),
        "delivery": "" if delivery is None else delivered(delivery),
        "API left out": counts(board.withheld_there),
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


def look(board: Board) -> Look:
    """The dashboard for a terminal; the bar is the policy's way to its last version."""
    away = board.delivery is not None and board.delivery.away_since is not None
    return Look(
        f"serve · {board.environment}",
        rows(board),
        done=board.version,
        total=board.total_steps if board.total_steps < ENDLESS else None,
        rewards=board.tally.scores[-NEWEST:],
        styles={"delivery": "red"} if away else {},
    )


@asynccontextmanager
async def showing(board: Board) -> AsyncIterator[None]:
    """Show the board while the block runs. A look is taken on the event loop, where nobody changes it meanwhile."""
    screen = console()
    if not screen.is_terminal:
        telling = asyncio.create_task(_tell(board))
        try:
            yield
        finally:
            telling.cancel()
            say(line(board))
        return
    with drawing(screen, look(board)) as shown:
        looking = asyncio.create_task(_draw(board, shown))
        try:
            yield
        finally:
            looking.cancel()
            shown.look = look(board)


async def _draw(board: Board, shown: Drawing) -> None:
    while True:
        shown.look = look(board)
        await asyncio.sleep(REFRESH)


async def _tell(board: Board) -> None:
    while True:
        say(line(board))
        await asyncio.sleep(LINE_EVERY)
