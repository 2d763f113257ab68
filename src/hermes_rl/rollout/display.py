"""Progress and summary of rollouts: a live panel, or a periodic line without a terminal, and a table at the end.

Everything goes to standard error; standard output is reserved for `--json`. When nothing finishes for a while, this
says so, with what is waited for.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from hermes_rl.console.live_display import LINE_EVERY, LiveDisplay, console, live_panel, shorten, warn, write_line
from hermes_rl.console.panel import Panel, format_counts, score_text
from hermes_rl.rollout.in_flight import RolloutsInFlight
from hermes_rl.rollout.metrics import RolloutCounts

MAX_SPARKLINE_SCORES = 4096
REFRESH_EVERY = 1.0
# Rollouts in flight that the panel lists.
SHOWN_ROLLOUTS = 6
# Seconds without a finished group after which, and at which interval, the wait is reported.
SILENCE = 15.0


class ProgressReporter(Protocol):
    def advance(self) -> None: ...


@contextmanager
def progress(
    what: str,
    total: int,
    tally: RolloutCounts,
    done: int = 0,
    *,
    title: str | None = None,
    waiting: Callable[[], str] = lambda: "",
    in_flight: RolloutsInFlight | None = None,
) -> Iterator[ProgressReporter]:
    """Show progress, scores and the rollouts in flight; `done` of the total were finished in an earlier run.

    `waiting` says what is waited for, and what to check, when nothing finishes.
    """
    screen, in_flight = console(), in_flight or RolloutsInFlight()
    if screen.is_terminal:
        progress_panel = _TerminalProgress(title or what, total, tally, done, waiting, in_flight)
        with live_panel(screen, progress_panel.look()) as display, _every(REFRESH_EVERY, progress_panel.refresh):
            progress_panel.display = display
            yield progress_panel
    else:
        progress_lines = _LineProgress(what, total, tally, done, waiting, in_flight)
        progress_lines.write_line()
        with _every(SILENCE / 3, progress_lines.report_silence):
            yield progress_lines
        progress_lines.write_line()


@contextmanager
def _every(seconds: float, call: Callable[[], None]) -> Iterator[None]:
    """Call this on the event loop until the end of the block."""
    loop = asyncio.get_running_loop()
    next_call: list[asyncio.TimerHandle] = []

    def repeat() -> None:
        next_call[:] = [loop.call_later(seconds, repeat)]
        call()

    next_call.append(loop.call_later(seconds, repeat))
    try:
        yield
    finally:
        next_call[0].cancel()


class _TerminalProgress:
    def __init__(
        self,
        title: str,
        total: int,
        tally: RolloutCounts,
        done: int,
        waiting: Callable[[], str],
        in_flight: RolloutsInFlight,
    ) -> None:
        self._title, self._total, self._tally, self._waiting = title, total, tally, waiting
        self._in_flight = in_flight
        self._done = self._done_before = done
        self._began = self._advanced_at = time.monotonic()
        self.display: LiveDisplay | None = None

    def advance(self) -> None:
        self._done += 1
        self._advanced_at = time.monotonic()
        self.refresh()

    def refresh(self) -> None:
        if self.display is not None:
            self.display.panel = self.look()

    def look(self) -> Panel:
        tally, budget = self._tally, self._tally.budget
        spent = "" if budget.spent is None else f", {budget.spent:.4f} spent"
        silent = time.monotonic() - self._advanced_at
        rows = {
            "waiting": silence_text(silent, self._waiting()) if silent >= SILENCE else "",
            **count_rows(tally),
            "tool calls": f"{tally.tool_calls}, {tally.tool_errors} with an error" if tally.tool_calls else "",
            "tokens": f"{budget.prompt_tokens:,} prompt, {budget.completion_tokens:,} completion{spent}",
            "rollouts": self._in_flight.text,
            **{f"  {rollout.name}": rollout.text for rollout in self._in_flight.oldest(SHOWN_ROLLOUTS)},
        }
        return Panel(
            self._title,
            {label: text for label, text in rows.items() if text},
            done=self._done,
            total=self._total,
            began=self._began,
            before=self._done_before,
            rewards=tally.scores[-MAX_SPARKLINE_SCORES:],
        )


class _LineProgress:
    def __init__(
        self,
        what: str,
        total: int,
        tally: RolloutCounts,
        done: int,
        waiting: Callable[[], str],
        in_flight: RolloutsInFlight,
    ) -> None:
        self._what, self._total, self._tally, self._waiting = what, total, tally, waiting
        self._done, self._in_flight, self._diagnosed = done, in_flight, False
        self._printed_at = self._advanced_at = time.monotonic()

    def advance(self) -> None:
        self._done += 1
        self._advanced_at = time.monotonic()
        if time.monotonic() - self._printed_at >= LINE_EVERY:
            self.write_line()
            if (problem := self._tally.diagnosis) and not self._diagnosed:
                self._diagnosed = True
                warn(problem)

    def report_silence(self) -> None:
        now = time.monotonic()
        if now - max(self._printed_at, self._advanced_at) >= SILENCE:
            self._printed_at = now
            parts = (silence_text(now - self._advanced_at, self._waiting()), self._in_flight.text)
            write_line(f"{self._what} {self._done}/{self._total}  {'; '.join(filter(None, parts))}")

    def write_line(self) -> None:
        self._printed_at = time.monotonic()
        parts = (score_line(self._tally), self._in_flight.text)
        write_line(f"{self._what} {self._done}/{self._total}  {'; '.join(filter(None, parts))}")


def silence_text(seconds: float, waiting: str) -> str:
    return f"none finished for {seconds:.0f} s" + (f"; {waiting}" if waiting else "")


def count_rows(tally: RolloutCounts) -> dict[str, str]:
    """The rows that every command shows about its rollouts."""
    return {
        "score": score_text(tally.mean, len(tally.scores), tally.rollouts),
        "not scored": format_counts(tally.failures),
        "charged": format_counts(tally.charged),
        "withheld": format_counts(tally.withheld_groups),
        "problem": tally.diagnosis or "",
    }


def score_line(tally: RolloutCounts) -> str:
    if not tally.rollouts:
        return ""
    mean = "–" if tally.mean is None else f"{tally.mean:.3f}"
    failed = sum(tally.failures.values())
    return f"mean score {mean} over {len(tally.scores)} scored" + (f", {failed} failed" if failed else "")


def summary_table(title: str, tally: RolloutCounts, notes: dict[str, str]) -> None:
    """Print the summary of a run: scores, stop reasons, failures by cause with an example of each."""
    from rich.table import Table

    from hermes_rl.console.escaping_console import styled

    table = Table(title=title, title_justify="left", show_header=False)
    table.add_row("groups", str(tally.groups))
    table.add_row("rollouts", f"{tally.rollouts}, {len(tally.scores)} scored")
    table.add_row("mean score", _mean(tally.mean, tally.standard_error))
    for label, text in _special_rows(tally).items():
        table.add_row(label, text)
    table.add_row("tool calls", f"{tally.tool_calls}, {tally.tool_errors} with an error")
    for name, values in tally.components.items():
        table.add_row(f"component: {name}", f"{statistics.fmean(values):.4f}")
    for label, style, counter in (
        ("stopped", "", tally.stop_reasons),
        ("not scored", "red", tally.failures),
        ("conversation ended", "", tally.user_ended),
        ("retried", "", tally.retried),
        ("charged to the policy", "yellow", tally.charged),
        ("audit failed", "red", tally.audit_errors),
        ("groups withheld from training", "", tally.withheld_groups),
        ("rollouts withheld from training", "", tally.withheld_rollouts),
        ("sequences dropped", "red", tally.breaches),
    ):
        for cause, count in counter.most_common():
            table.add_row(styled((f"{label}: {cause}", style)), str(count))
    budget = tally.budget
    table.add_row("tokens", f"{budget.prompt_tokens:,} prompt, {budget.completion_tokens:,} completion")
    if users := tally.user_counts:
        tokens = f"{users['prompt_tokens']:,} prompt, {users['completion_tokens']:,} completion tokens"
        table.add_row("simulated user", f"{users['replies']:,} replies, {tokens}")
    if tally.sequences:
        table.add_row("exact tokens", f"{tally.sampled_tokens:,} sampled, in {tally.sequences:,} sequences")
    if budget.spent is not None:
        table.add_row("spent", f"{budget.spent:.4f}")
    screen = console()
    screen.print(table)
    if tally.limit:
        screen.print(styled(("ended early", "yellow"), f" by {limit_text(tally)}"), soft_wrap=True)
    if problem := tally.diagnosis:
        screen.print(styled(("problem", "red"), f": {problem}"), soft_wrap=True)
    for cause, message in tally.examples.items():
        screen.print(styled((cause, "red"), f", for example: {shorten(message)}"), soft_wrap=True)
    for name, value in notes.items():
        screen.print(f"{name}: {value}", soft_wrap=True)


def _special_rows(tally: RolloutCounts) -> dict[str, str]:
    """The rows of environments with several agents, and of those with an audit."""
    rows = {f"  of {seat}": f"{mean:.4f}" for seat, mean in tally.seat_means.items()}
    if gaps := [gap for group in tally.audit_gaps for gap in group]:
        rows["audited"] = f"{len(gaps)} rollouts, trained − audited reward {sum(gaps) / len(gaps):+.4f}"
    return rows


def limit_text(tally: RolloutCounts) -> str:
    """The limit that ended the run, and the next step."""
    dropped = f"; {tally.dropped} groups in flight were dropped" if tally.dropped else ""
    hint = "; raise it and continue with --resume" if "_limit: " in (tally.limit or "") else ""
    return f"{tally.limit}{dropped}{hint}"


def _mean(mean: float | None, error: float | None) -> str:
    if mean is None:
        return "none was scored"
    return f"{mean:.4f}" + (f" ± {error:.4f} (standard error)" if error is not None else "")
