"""The progress panel of a command: progress bar, rewards as a sparkline, and labelled rows.

Rendering is pure except for the clock. Text is never interpreted: not as markup, and not by the terminal.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from hermes_rl.console.output import visible

if TYPE_CHECKING:
    from rich.console import RenderableType

BARS = "▁▂▃▄▅▆▇█"
SPARKS = 32
BAR_WIDTH = 32
CAUSES_SHOWN = 4
# Labels of problems, and of rows that report waiting.
RED = frozenset({"not scored", "failed", "problem", "sequences dropped"})
YELLOW = frozenset({"paused", "waiting", "withheld", "API left out", "ended early"})
STATES = {
    "serving": "green",
    "running": "green",
    "finished": "green",
    "complete": "green",
    "failed": "red",
    "interrupted": "red",
}


@dataclass(frozen=True, slots=True)
class Panel:
    """`rows` maps labels to text, in display order; `rewards` (newest last) are drawn next to the row `score`.

    `done` of `total` make a progress bar; `began` is a time.monotonic value, when `before` were already done.
    """

    title: str
    rows: Mapping[str, str]
    done: float | None = None
    total: float | None = None
    began: float | None = None
    before: float = 0
    rewards: Sequence[float] = ()
    styles: Mapping[str, str] = field(default_factory=dict)


def render_panel(panel: Panel, now: float | None = None) -> "RenderableType":
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for label, text in panel.rows.items():
        shown = Text(visible(" ".join(text.split())), style=panel.styles.get(label, row_style(label, text)))
        if label == "score" and panel.rewards:
            shown.append(f"   {sparkline(panel.rewards)}", style="cyan")
        if shown:
            table.add_row(Text(visible(label)), shown)
    parts: list[RenderableType] = [] if panel.done is None else [_bar(panel, time.monotonic() if now is None else now)]
    return Panel(
        Group(*parts, table),
        title=Text(visible(panel.title), style="bold"),
        title_align="left",
        expand=False,
        border_style="dim",
    )


def _bar(panel: Panel, now: float) -> "RenderableType":
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    row, done, total = Table.grid(padding=(0, 2)), panel.done or 0, panel.total
    row.add_row(
        ProgressBar(
            total=total or 1, completed=min(done, total or 1) if total else 0, width=BAR_WIDTH, complete_style="cyan"
        ),
        Text(f"{done:g}" if total is None else f"{done:g}/{total:g}"),
        Text(timing_text(panel, now), style="dim"),
    )
    return row


def timing_text(panel: Panel, now: float) -> str:
    """Elapsed time, rate and estimated time left."""
    if panel.began is None:
        return ""
    elapsed, made = now - panel.began, (panel.done or 0) - panel.before
    text = format_duration(elapsed)
    if made > 0 and elapsed > 0:
        text += f"  {_rate(made / elapsed)}"
        if panel.total is not None and panel.total > (panel.done or 0):
            text += f"  {format_duration((panel.total - (panel.done or 0)) * elapsed / made)} left"
    return text


def _rate(per_second: float) -> str:
    for unit, seconds in (("s", 1), ("min", 60), ("h", 3600)):
        if per_second * seconds >= 1 or unit == "h":
            return f"{per_second * seconds:.3g}/{unit}"
    return ""


def format_duration(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}"


def format_long_duration(seconds: float) -> str:
    """A duration of any size in the unit that suits it."""
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} seconds"


def row_style(label: str, text: str) -> str:
    if label == "state":
        return STATES.get(text.split(maxsplit=1)[0] if text else "", "yellow")
    return "red" if label in RED else "yellow" if label in YELLOW else ""


def score_text(mean: float | None, scored: int, rollouts: int) -> str:
    return f"mean {'–' if mean is None else f'{mean:.3f}'} over {scored} scored of {rollouts} rollouts"


def sparkline(values: Sequence[float], width: int = SPARKS) -> str:
    """Values as bars, averaged over equal slices; scaled to 0–1 if all means are in it, otherwise to their range."""
    if not values:
        return ""
    size = len(values)
    edges = [size * index // min(width, size) for index in range(min(width, size) + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = (0.0, 1.0) if min(means) >= 0 and max(means) <= 1 else (min(means), max(means))
    span = high - low or 1.0
    return "".join(BARS[min(len(BARS) - 1, int((mean - low) / span * len(BARS)))] for mean in means)


def format_counts(counted: Mapping[str, int]) -> str:
    """The most frequent causes, and the number of others."""
    ranked = sorted(counted.items(), key=lambda item: -item[1])
    shown = [f"{cause} {count}" for cause, count in ranked[:CAUSES_SHOWN]]
    more = len(ranked) - CAUSES_SHOWN
    return ", ".join(shown) + (f" and {more} other causes" if more > 0 else "")
