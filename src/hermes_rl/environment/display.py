"""What a person sees while rollouts run and after: a progress bar or, without a terminal, a line now and then; tables.

Everything here goes to standard error, so that `--json` leaves standard output to programs.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from hermes_rl.environment.metrics import Tally

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

LINE_EVERY = 10.0
_DRAWN_ON: ContextVar["Console | None"] = ContextVar("drawn_on", default=None)


class Advancing(Protocol):
    def advance(self) -> None: ...


def console() -> "Console":
    """Where to print: above what is drawn live, if something is."""
    from rich.console import Console

    return _DRAWN_ON.get() or Console(stderr=True, highlight=False)


@contextmanager
def drawn_on(screen: "Console") -> Iterator[None]:
    """Within this block something is drawn live there; whoever wrote past that console would tear it."""
    before = _DRAWN_ON.set(screen)
    try:
        yield
    finally:
        _DRAWN_ON.reset(before)


@contextmanager
def progress(what: str, total: int, tally: Tally, done: int = 0) -> Iterator[Advancing]:
    """Show how far the work is and how it goes; `done` of it were done before."""
    screen = console()
    if screen.is_terminal:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        with Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=screen,
        ) as bar:
            yield _Bar(bar, bar.add_task(what, total=total, completed=done, state=""), tally)
    else:
        lines = _Lines(what, total, tally, done)
        lines.say()
        yield lines
        lines.say()


class _Bar:
    def __init__(self, bar: "Progress", task: Any, tally: Tally) -> None:
        self._bar, self._task, self._tally = bar, task, tally

    def advance(self) -> None:
        self._bar.update(self._task, advance=1, state=state_line(self._tally))


class _Lines:
    def __init__(self, what: str, total: int, tally: Tally, done: int) -> None:
        self._what, self._total, self._tally = what, total, tally
        self._done, self._said_at = done, time.monotonic()

    def advance(self) -> None:
        self._done += 1
        if time.monotonic() - self._said_at >= LINE_EVERY:
            self.say()

    def say(self) -> None:
        self._said_at = time.monotonic()
        line = f"{self._what} {self._done}/{self._total}  {state_line(self._tally)}"
        sys.stderr.write(line.rstrip() + "\n")
        sys.stderr.flush()


def state_line(tally: Tally) -> str:
    if not tally.rollouts:
        return ""
    mean = "–" if tally.mean is None else f"{tally.mean:.3f}"
    failed = sum(tally.failures.values())
    return f"mean score {mean} over {len(tally.scores)} scored" + (f", {failed} failed" if failed else "")


def summary_table(title: str, tally: Tally, notes: dict[str, str]) -> None:
    """The end of a `process` run: scores, stop reasons, failures by cause, and an example of each."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False)
    table.add_row("groups", str(tally.groups))
    table.add_row("rollouts", f"{tally.rollouts}, {len(tally.scores)} scored")
    table.add_row("mean score", _mean(tally.mean, tally.standard_error))
    table.add_row("tool calls", f"{tally.tool_calls}, {tally.tool_errors} with an error")
    for name, values in tally.components.items():
        table.add_row(f"component: {name}", f"{statistics.fmean(values):.4f}")
    for label, counts in (
        ("stopped: {}", tally.stop_reasons),
        ("[red]not scored: {}[/red]", tally.failures),
        ("tried again: {}", tally.retried),
        ("groups withheld from training: {}", tally.withheld_groups),
        ("rollouts withheld from training: {}", tally.withheld_rollouts),
        ("[red]sequences dropped: {}[/red]", tally.breaches),
    ):
        for cause, count in counts.most_common():
            table.add_row(label.format(cause), str(count))
    budget = tally.budget
    table.add_row("tokens", f"{budget.prompt_tokens:,} prompt, {budget.completion_tokens:,} completion")
    if tally.sequences:
        table.add_row("exact tokens", f"{tally.sampled_tokens:,} sampled, in {tally.sequences:,} sequences")
    if budget.spent is not None:
        table.add_row("spent", f"{budget.spent:.4f}")
    screen = console()
    screen.print(table)
    if tally.limit:
        onward = "; raise it and go on with --resume" if "_limit: " in tally.limit else ""
        screen.print(f"[yellow]ended early[/yellow] by {tally.limit}{onward}", soft_wrap=True)
    for cause, message in tally.examples.items():
        screen.print(f"[red]{cause}[/red], for instance: {short(message)}", soft_wrap=True)
    for name, value in notes.items():
        screen.print(f"{name}: {value}", soft_wrap=True)


def _mean(mean: float | None, error: float | None) -> str:
    if mean is None:
        return "none was scored"
    return f"{mean:.4f}" + (f" ± {error:.4f} (standard error)" if error is not None else "")


def short(text: str) -> str:
    line = " ".join(text.split())
    return (line if len(line) <= 300 else line[:300] + "…").replace("[", r"\[")
