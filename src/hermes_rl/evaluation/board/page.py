"""The board as one HTML file that needs no network and no script."""

from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from string import Template

from hermes_rl.evaluation.board.series import Board, Entry, Series
from hermes_rl.evaluation.table import estimate_text
from hermes_rl.version import __version__

WIDTH, HEIGHT, EDGE = 1000, 190, 14


def board_page(board: Board, title: str) -> str:
    page = Template(resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    worse = len(board.regressions)
    count = sum(len(one.entries) for one in board.series)
    return page.substitute(
        title=escape(title),
        facts=f"{count} evaluations in {len(board.series)} series · hermes-rl {__version__}",
        state="worse" if worse else "better",
        verdict=f"{worse} regression{'s' * (worse != 1)} in the newest evaluations" if worse else "No regression",
        series="".join(map(_series, board.series)),
        unreadable="".join(f'<p class="note">Left out: {escape(reason)}</p>' for reason in board.unreadable),
    )


def _series(series: Series) -> str:
    rows = "".join(map(_row, reversed(series.entries)))
    return (
        f'<h2>{escape(series.name)}</h2>{_chart(series.entries)}<div class="scroll"><table><tr><th>finished</th>'
        '<th>model</th><th class="n">mean score</th><th class="n">change</th><th class="n">p</th>'
        f'<th class="n">items</th><th class="n">no score</th></tr>{rows}</table></div>'
    )


def _row(entry: Entry) -> str:
    one, change = entry.evaluation, entry.change
    difference = p_value = "–"
    if change is not None:
        test = change.comparison
        moved = test.difference
        difference = ("+" if moved.estimate > 0 else "") + estimate_text(moved.estimate, moved.low, moved.high)
        p_value = "&lt; 0.0001" if test.p_value < 1e-4 else f"{test.p_value:.4f}"
    warnings = "".join(f'<br><span class="note">{escape(text)}</span>' for text in change.warnings) if change else ""
    return (
        f"<tr><td>{escape(_time(entry))}</td><td>{escape(one.model)}{warnings}</td>"
        f'<td class="n">{estimate_text(entry.mean.estimate, entry.mean.low, entry.mean.high)}</td>'
        f'<td class="n {_state(entry)}">{difference}</td><td class="n">{p_value}</td>'
        f'<td class="n">{entry.mean.n_items}</td><td class="n">{one.unscored or "–"}</td></tr>'
    )


def _chart(entries: Sequence[Entry]) -> str:
    """A point with its interval for each evaluation, oldest left. It stretches to the width of the page."""
    low = min(0.0, *(entry.mean.low for entry in entries))
    high = max(1.0, *(entry.mean.high for entry in entries))
    step = WIDTH / len(entries)
    marks = (low, (low + high) / 2, high)

    def across(number: int) -> str:
        return f"{step * (number + 0.5):.1f}"

    def up(value: float) -> str:
        return f"{HEIGHT - EDGE - (value - low) / (high - low) * (HEIGHT - 2 * EDGE):.1f}"

    def line(kind: str, x: tuple[str, str], y: tuple[str, str]) -> str:
        return f'<line class="{kind}" x1="{x[0]}" x2="{x[1]}" y1="{y[0]}" y2="{y[1]}"/>'

    def parts() -> Iterator[str]:
        for mark in marks:
            yield line("axis", ("0", str(WIDTH)), (up(mark), up(mark)))
        path = " ".join(f"{across(number)},{up(entry.mean.estimate)}" for number, entry in enumerate(entries))
        yield f'<polyline class="path" points="{path}"/>'
        for number, entry in enumerate(entries):
            x, mean = (across(number), across(number)), entry.mean
            yield (
                f'<g class="point {_state(entry)}"><title>{escape(_time(entry))} {escape(entry.evaluation.model)}: '
                f"{estimate_text(mean.estimate, mean.low, mean.high)}</title>"
                # A line without length with round ends is a dot, also where the chart is stretched.
                f"{line('bar', x, (up(mean.low), up(mean.high)))}{line('mean', x, (up(mean.estimate),) * 2)}</g>"
            )

    scale = "".join(f'<span style="top:{up(mark)}px">{mark:.3g}</span>' for mark in marks)
    return (
        f'<div class="chart"><div class="scale">{scale}</div><svg viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'preserveAspectRatio="none" role="img" aria-label="mean scores over time">{"".join(parts())}</svg></div>'
    )


def _state(entry: Entry) -> str:
    return "worse" if entry.regression else "better" if entry.improvement else ""


def _time(entry: Entry) -> str:
    return entry.evaluation.finished_at.replace("T", " ")[:16] or "unknown"
