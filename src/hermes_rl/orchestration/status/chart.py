"""A chart of lines and points over steps, as PNG.

Always true: every finite point is inside the axes; non-finite points are skipped, and an empty chart says so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hermes_rl.orchestration.status.png_canvas import Canvas, Color
from hermes_rl.orchestration.status.stroke_font import Point, text_width

WIDTH, HEIGHT = 1000, 560
LEFT, RIGHT, TOP, BOTTOM = 76, 30, 100, 62
PAPER, INSIDE, GRID, AXIS, INK, PALE = (
    (250, 250, 248), (255, 255, 255), (232, 233, 236), (150, 156, 166), (31, 37, 48), (104, 112, 124),
)  # fmt: skip
PALETTE: tuple[Color, ...] = ((37, 99, 235), (13, 148, 136), (147, 51, 234), (219, 39, 119), (101, 163, 13))
POINTS: tuple[Color, ...] = ((217, 119, 6), (185, 28, 28), (71, 85, 105), (3, 105, 161))
# From this many points on, a line is drawn pale with its trend on top.
TREND_FROM = 24
MAX_POINTS = 800


@dataclass(frozen=True, slots=True)
class Series:
    """`marks` draws single points, joined by a thin line."""

    name: str
    points: tuple[Point, ...]
    marks: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to pixels along one axis."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def render_chart(series: Sequence[Series], *, title: str, subtitle: str, x_label: str, y_label: str) -> bytes:
    canvas = Canvas(WIDTH, HEIGHT, PAPER)
    canvas.box(LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM, INSIDE)
    canvas.text((LEFT, 36), title[:60], INK, 2.1, thickness=1.9)
    canvas.text((LEFT, 60), subtitle[:110], PALE)
    finite_series = [replace(item, points=_finite(item.points)) for item in series]
    finite_series = [item for item in finite_series if item.points]
    points = [point for item in finite_series for point in item.points]
    x_ticks = ticks(
        min((x for x, _ in points), default=0.0), max((x for x, _ in points), default=1.0), 10, integer=True
    )
    y_ticks = ticks(min((y for _, y in points), default=0.0), max((y for _, y in points), default=1.0), 6)
    x_scale = Scale(x_ticks[0], x_ticks[-1], LEFT, WIDTH - RIGHT)
    y_scale = Scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    _axes(canvas, x_scale, y_scale, x_ticks, y_ticks)
    canvas.text_centered(((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16), x_label, PALE)
    canvas.text((LEFT, TOP - 12), y_label, PALE)
    if not points:
        canvas.text_centered(((LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2), "no step yet", PALE, 2)
    colored = list(zip(finite_series, _colors(finite_series), strict=True))
    for item, color in colored:
        _draw(canvas, [(x_scale(x), y_scale(y)) for x, y in downsample(item.points)], color, marks=item.marks)
    _legend(canvas, colored)
    return canvas.png()


def ticks(low: float, high: float, max_ticks: int, *, integer: bool = False) -> list[float]:
    """Round numbers that enclose both values: at least two, at most about `max_ticks`."""
    if not high > low:
        low, high = low - (0.0 if integer else 0.5), high + (1.0 if integer else 0.5)
    raw = (high - low) / (max_ticks - 1)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10, 20) if size * factor >= raw)
    step = max(1.0, step) if integer else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def downsample(points: Sequence[Point]) -> list[Point]:
    """At most MAX_POINTS points, each the mean of its neighbours."""
    size = -(-len(points) // MAX_POINTS) or 1
    bins = [points[at : at + size] for at in range(0, len(points), size)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in bins]


def trend(points: Sequence[Point]) -> list[Point]:
    """A centred moving average, with a narrower window near the ends."""
    half_width = max(2, len(points) // 24)
    smooth: list[Point] = []
    for at, (x, _) in enumerate(points):
        half = min(half_width, at, len(points) - 1 - at)
        window = points[at - half : at + half + 1]
        smooth.append((x, sum(y for _, y in window) / len(window)))
    return smooth


def tick_label(value: float, step: float) -> str:
    """With enough digits to tell neighbouring ticks apart."""
    if value and (abs(value) >= 1e6 or step < 1e-4):
        return f"{value:.2g}"
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step < 1 else 0
    return f"{value + 0.0:.{digits}f}"


def _axes(canvas: Canvas, x_scale: Scale, y_scale: Scale, x_ticks: Sequence[float], y_ticks: Sequence[float]) -> None:
    for value in y_ticks:
        y = round(y_scale(value))
        canvas.path([(LEFT, y), (WIDTH - RIGHT, y)], GRID)
        canvas.text_right((LEFT - 10, y + 4.5), tick_label(value, y_ticks[1] - y_ticks[0]), PALE)
    for value in x_ticks:
        x = round(x_scale(value))
        canvas.path([(x, TOP), (x, HEIGHT - BOTTOM)], GRID)
        canvas.text_centered((x, HEIGHT - BOTTOM + 21), tick_label(value, x_ticks[1] - x_ticks[0]), PALE)
    canvas.path([(LEFT, TOP), (LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, HEIGHT - BOTTOM)], AXIS)


def _draw(canvas: Canvas, points: list[Point], color: Color, *, marks: bool) -> None:
    if marks:
        canvas.path(points, color, 1.4, 0.55)
        for point in points:
            canvas.dot(point, 5.5, INSIDE)
            canvas.dot(point, 4.2, color)
    elif len(points) >= TREND_FROM:
        canvas.path(points, color, 1.2, 0.32)
        canvas.path(trend(points), color, 2.6)
    else:
        canvas.path(points, color, 2.4)
        for point in points:
            canvas.dot(point, 3.2, color)


def _legend(canvas: Canvas, series: Sequence[tuple[Series, Color]]) -> None:
    x = float(WIDTH - RIGHT)
    for item, color in reversed(series):
        name = item.name[:32]
        x -= 1.5 * text_width(name)
        canvas.text((x, TOP - 12), name, INK)
        if item.marks:
            canvas.dot((x - 14, TOP - 16.5), 4.2, color)
        else:
            canvas.path([(x - 26, TOP - 16.5), (x - 9, TOP - 16.5)], color, 2.6)
        x -= 46


def _colors(series: Sequence[Series]) -> list[Color]:
    lines, marks = iter(PALETTE * len(series)), iter(POINTS * len(series))
    return [next(marks if item.marks else lines) for item in series]


def _finite(points: Sequence[Point]) -> tuple[Point, ...]:
    return tuple((x, y) for x, y in points if math.isfinite(x) and math.isfinite(y))
