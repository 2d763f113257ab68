"""Progress of long commands on standard error: a bar on a terminal, otherwise a line every ten seconds."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from hermes_rl.console.live_display import LINE_EVERY, console, write_line

if TYPE_CHECKING:
    from rich.progress import Progress


_BAR_WIDTH = 20


class ProgressSteps(Protocol):
    def show(self, done: int, state: str) -> None: ...


@contextmanager
def progress(what: str, total: int, *, by_stage: bool = False) -> Iterator[ProgressSteps]:
    """With `by_stage` and without a terminal, each new state is a line too, apart from changed numbers."""
    screen = console()
    if not screen.is_terminal:
        yield _ProgressLines(what, total, by_stage=by_stage)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(_BAR_WIDTH),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[state]}", markup=False),
    )
    with Progress(*columns, console=screen, transient=True) as bar:
        # The state gets the remaining width: a longer line would squeeze out the bar.
        room = max(screen.width - len(what) - _BAR_WIDTH - 2 * len(str(total)) - 16, 0)
        yield _Bar(bar, bar.add_task(what, total=total, state=""), room)


class _Bar:
    def __init__(self, bar: "Progress", task: Any, room: int) -> None:
        self._bar, self._task, self._room = bar, task, room

    def show(self, done: int, state: str) -> None:
        self._bar.update(self._task, completed=done, state=state[: self._room])


class _ProgressLines:
    def __init__(self, what: str, total: int, *, by_stage: bool) -> None:
        self._what, self._total, self._by_stage = what, total, by_stage
        self._printed_at, self._stage = time.monotonic(), ""

    def show(self, done: int, state: str) -> None:
        stage = re.sub(r"\d+", "", state)
        if time.monotonic() - self._printed_at >= LINE_EVERY or (self._by_stage and stage != self._stage):
            self._printed_at, self._stage = time.monotonic(), stage
            write_line(f"{self._what} {done}/{self._total}  {state}")
