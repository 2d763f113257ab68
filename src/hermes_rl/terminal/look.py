"""A look: how far a command is, its rewards as a sparkline, and what else there is to say, as a panel.

Always true: pure; the same look gives the same picture, but for the clock. Text of others is shown as it is.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

BARS = "▁▂▃▄▅▆▇█"
SPARKS = 32
BAR_WIDTH = 32
CAUSES_SHOWN = 4
# Labels whose rows say what is wrong, and those that say what is waited for.
RED = frozenset({"not scored", "failed", "problem", "sequences dropped"})
YELLOW = frozenset({"waiting", "withheld", "API left out", "ended early"})
STATES = {
    "serving": "green",
    "running": "green",
    "finished": "green",
    "complete": "green",
    "failed": "red",
    "interrupted": "red",
}


@dataclass(frozen=True, slots=True)
class Look:
    """`rows` are shown in their order, by label; `rewards` beside the row named score, the newest last.

    `done` of `total` make a bar; `began` is by time.monotonic, with `before` of them done already then.
    """

    title: str
    rows: Mapping[str, str]
    done: float | None = None
    total: float | None = None
    began: float | None = None
    before: float = 0
    rewards: Sequence[float] = ()
    styles: Mapping[str, str] = field(default_factory=dict)


def picture(look: Look, now: float | None = None) -> "RenderableType":
    """The look for a terminal."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for label, text in look.rows.items():
        shown = Text(" ".join(text.split()), style=look.styles.get(label, style_of(label, text)))
        if label == "score" and look.rewards:
            shown.append(f"   {sparkline(look.rewards)}", style="cyan")
        if shown:
            table.add_row(label, shown)
    parts: list[RenderableType] = [] if look.done is None else [_bar(look, time.monotonic() if now is None else now)]
    return Panel(
        Group(*parts, table), title=Text(look.title, style="bold"), title_align="left", expand=False, border_style="dim"
    )


def _bar(look: Look, now: float) -> "RenderableType":
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    row, done, total = Table.grid(padding=(0, 2)), look.done or 0, look.total
    row.add_row(
        ProgressBar(
            total=total or 1, completed=min(done, total or 1) if total else 0, width=BAR_WIDTH, complete_style="cyan"
        ),
        Text(f"{done:g}" if total is None else f"{done:g}/{total:g}"),
        Text(times(look, now), style="dim"),
    )
    return row


def times(look: Look, now: float) -> str:
    """How long it took, how fast it goes and how long it may take yet."""
    if look.began is None:
        return ""
    took, made = now - look.began, (look.done or 0) - look.before
    said = clock(took)
    if made > 0 and took > 0:
        said += f"  {_rate(made / took)}"
        if look.total is not None and look.total > (look.done or 0):
            said += f"  {clock((look.total - (look.done or 0)) * took / made)} left"
    return said


def _rate(a_second: float) -> str:
    for unit, seconds in (("s", 1), ("min", 60), ("h", 3600)):
        if a_second * seconds >= 1 or unit == "h":
            return f"{a_second * seconds:.3g}/{unit}"
    return ""


def clock(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}"


def style_of(label: str, text: str) -> str:
    if label == "state":
        return STATES.get(text.split(maxsplit=1)[0] if text else "", "yellow")
    return "red" if label in RED else "yellow" if label in YELLOW else ""


def score_text(mean: float | None, scored: int, rollouts: int) -> str:
    return f"mean {'–' if mean is None else f'{mean:.3f}'} over {scored} scored of {rollouts} rollouts"


def sparkline(values: Sequence[float], width: int = SPARKS) -> str:
    """The values as bars, means of equal shares; from 0 to 1 where all are there, else from the least to the most."""
    if not values:
        return ""
    size = len(values)
    edges = [size * place // min(width, size) for place in range(min(width, size) + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = (0.0, 1.0) if min(means) >= 0 and max(means) <= 1 else (min(means), max(means))
    span = high - low or 1.0
    return "".join(BARS[min(len(BARS) - 1, int((mean - low) / span * len(BARS)))] for mean in means)


def counts(counted: Mapping[str, int]) -> str:
    """The most frequent causes, and how many others there are."""
    ranked = sorted(counted.items(), key=lambda one: -one[1])
    shown = [f"{cause} {count}" for cause, count in ranked[:CAUSES_SHOWN]]
    more = len(ranked) - CAUSES_SHOWN
    return ", ".join(shown) + (f" and {more} other causes" if more > 0 else "")
