"""What a person sees while rollouts run and after: a panel or, without a terminal, a line now and then; tables.

Everything here goes to standard error, so that `--json` leaves standard output to programs.
"""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from hermes_rl.environment.metrics import Tally
from hermes_rl.terminal.look import Look, counts, score_text
from hermes_rl.terminal.screen import LINE_EVERY, Drawing, console, drawing, say, short

# Of the rewards, for the sparkline.
NEWEST = 4096


class Advancing(Protocol):
    def advance(self) -> None: ...


@contextmanager
def progress(what: str, total: int, tally: Tally, done: int = 0, *, title: str | None = None) -> Iterator[Advancing]:
    """Show how far the work is and how it goes; `done` of it were done before."""
    screen = console()
    if screen.is_terminal:
        course = _Course(title or what, total, tally, done)
        with drawing(screen, course.look()) as shown:
            course.shown = shown
            yield course
    else:
        lines = _Lines(what, total, tally, done)
        lines.say()
        yield lines
        lines.say()


class _Course:
    """On a terminal."""

    def __init__(self, title: str, total: int, tally: Tally, done: int) -> None:
        self._title, self._total, self._tally = title, total, tally
        self._done = self._before = done
        self._began = time.monotonic()
        self.shown: Drawing | None = None

    def advance(self) -> None:
        self._done += 1
        if self.shown is not None:
            self.shown.look = self.look()

    def look(self) -> Look:
        tally, budget = self._tally, self._tally.budget
        spent = "" if budget.spent is None else f", {budget.spent:.4f} spent"
        rows = {
            **tally_rows(tally),
            "tool calls": f"{tally.tool_calls}, {tally.tool_errors} with an error" if tally.tool_calls else "",
            "tokens": f"{budget.prompt_tokens:,} prompt, {budget.completion_tokens:,} completion{spent}",
        }
        return Look(
            self._title,
            {label: text for label, text in rows.items() if text},
            done=self._done,
            total=self._total,
            began=self._began,
            before=self._before,
            rewards=tally.scores[-NEWEST:],
        )


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
        say(f"{self._what} {self._done}/{self._total}  {state_line(self._tally)}")


def tally_rows(tally: Tally) -> dict[str, str]:
    """What every command says of its rollouts."""
    return {
        "score": score_text(tally.mean, len(tally.scores), tally.rollouts),
        "not scored": counts(tally.failures),
        "withheld": counts(tally.withheld_groups),
    }


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
    for label, counted in (
        ("stopped: {}", tally.stop_reasons),
        ("[red]not scored: {}[/red]", tally.failures),
        ("tried again: {}", tally.retried),
        ("groups withheld from training: {}", tally.withheld_groups),
        ("rollouts withheld from training: {}", tally.withheld_rollouts),
        ("[red]sequences dropped: {}[/red]", tally.breaches),
    ):
        for cause, count in counted.most_common():
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
