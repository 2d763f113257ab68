"""A chart of lines and points over steps, as PNG.

Always true: every finite point given is inside the axes; what is not finite is left out, and a chart without a point
is a chart that says so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hermes_rl.runs.watching.canvas import Canvas, Color
from hermes_rl.runs.watching.strokes import Point, width_of

WIDTH, HEIGHT = 1000, 560
LEFT, RIGHT, TOP, BOTTOM = 76, 30, 100, 62
PAPER, INSIDE, GRID, AXIS, INK, PALE = (
    (250, 250, 248), (255, 255, 255), (232, 233, 236), (150, 156, 166), (31, 37, 48), (104, 112, 124),
)  # fmt: skip
PALETTE: tuple[Color, ...] = ((37, 99, 235), (13, 148, 136), (147, 51, 234), (219, 39, 119), (101, 163, 13))
POINTS: tuple[Color, ...] = ((217, 119, 6), (185, 28, 28), (71, 85, 105), (3, 105, 161))
# From so many points on a line is noise with a trend in it: the noise is drawn pale, the trend over it.
NOISY = 24
MOST = 800


@dataclass(frozen=True, slots=True)
class Series:
    """`marks` draws single points, joined by a thin line."""

    name: str
    points: tuple[Point, ...]
    marks: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to pixels along one axis."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def chart(series: Sequence[Series], *, title: str, subtitle: str, x_label: str, y_label: str) -> bytes:
    canvas = Canvas(WIDTH, HEIGHT, PAPER)
    canvas.box(LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM, INSIDE)
    canvas.text((LEFT, 36), title[:60], INK, 2.1, thickness=1.9)
    canvas.text((LEFT, 60), subtitle[:110], PALE)
    sound = [replace(one, points=_finite(one.points)) for one in series]
    sound = [one for one in sound if one.points]
    points = [point for one in sound for point in one.points]
    x_ticks = ticks(min((x for x, _ in points), default=0.0), max((x for x, _ in points), default=1.0), 10, whole=True)
    y_ticks = ticks(min((y for _, y in points), default=0.0), max((y for _, y in points), default=1.0), 6)
    across = Scale(x_ticks[0], x_ticks[-1], LEFT, WIDTH - RIGHT)
    up = Scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    _axes(canvas, across, up, x_ticks, y_ticks)
    canvas.text_around(((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16), x_label, PALE)
    canvas.text((LEFT, TOP - 12), y_label, PALE)
    if not points:
        canvas.text_around(((LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2), "no step yet", PALE, 2)
    colored = list(zip(sound, _colors(sound), strict=True))
    for one, color in colored:
        _draw(canvas, [(across(x), up(y)) for x, y in thinned(one.points)], color, marks=one.marks)
    _legend(canvas, colored)
    return canvas.png()


def ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Round numbers that enclose both, at most so many and at least two."""
    if not high > low:
        low, high = low - (0.0 if whole else 0.5), high + (1.0 if whole else 0.5)
    raw = (high - low) / (most - 1)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10, 20) if size * factor >= raw)
    step = max(1.0, step) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most MOST points: the means of neighbours."""
    size = -(-len(points) // MOST) or 1
    parts = [points[at : at + size] for at in range(0, len(points), size)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def trend(points: Sequence[Point]) -> list[Point]:
    """Means over a window that is as wide on both sides of a point."""
    reach = max(2, len(points) // 24)
    smooth: list[Point] = []
    for at, (x, _) in enumerate(points):
        near = min(reach, at, len(points) - 1 - at)
        part = points[at - near : at + near + 1]
        smooth.append((x, sum(y for _, y in part) / len(part)))
    return smooth


def label(value: float, step: float) -> str:
    """A tick's number, with as many digits as tell it from the next."""
    if value and (abs(value) >= 1e6 or step < 1e-4):
        return f"{value:.2g}"
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step < 1 else 0
    return f"{value + 0.0:.{digits}f}"


def _axes(canvas: Canvas, across: Scale, up: Scale, x_ticks: Sequence[float], y_ticks: Sequence[float]) -> None:
    for value in y_ticks:
        y = round(up(value))
        canvas.path([(LEFT, y), (WIDTH - RIGHT, y)], GRID)
        canvas.text_ending((LEFT - 10, y + 4.5), label(value, y_ticks[1] - y_ticks[0]), PALE)
    for value in x_ticks:
        x = round(across(value))
        canvas.path([(x, TOP), (x, HEIGHT - BOTTOM)], GRID)
        canvas.text_around((x, HEIGHT - BOTTOM + 21), label(value, x_ticks[1] - x_ticks[0]), PALE)
    canvas.path([(LEFT, TOP), (LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, HEIGHT - BOTTOM)], AXIS)


def _draw(canvas: Canvas, points: list[Point], color: Color, *, marks: bool) -> None:
    if marks:
        canvas.path(points, color, 1.4, 0.55)
        for point in points:
            canvas.dot(point, 5.5, INSIDE)
            canvas.dot(point, 4.2, color)
    elif len(points) >= NOISY:
        canvas.path(points, color, 1.2, 0.32)
        canvas.path(trend(points), color, 2.6)
    else:
        canvas.path(points, color, 2.4)
        for point in points:
            canvas.dot(point, 3.2, color)


def _legend(canvas: Canvas, series: Sequence[tuple[Series, Color]]) -> None:
    x = float(WIDTH - RIGHT)
    for one, color in reversed(series):
        name = one.name[:32]
        x -= 1.5 * width_of(name)
        canvas.text((x, TOP - 12), name, INK)
        if one.marks:
            canvas.dot((x - 14, TOP - 16.5), 4.2, color)
        else:
            canvas.path([(x - 26, TOP - 16.5), (x - 9, TOP - 16.5)], color, 2.6)
        x -= 46


def _colors(series: Sequence[Series]) -> list[Color]:
    lines, marks = iter(PALETTE * len(series)), iter(POINTS * len(series))
    return [next(marks if one.marks else lines) for one in series]


def _finite(points: Sequence[Point]) -> tuple[Point, ...]:
    return tuple((x, y) for x, y in points if math.isfinite(x) and math.isfinite(y))
