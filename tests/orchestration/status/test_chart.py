import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.orchestration.status.chart import MAX_POINTS, Series, downsample, render_chart, tick_label, ticks, trend
from hermes_rl.orchestration.status.png_canvas import Canvas
from hermes_rl.orchestration.status.stroke_font import GLYPHS, glyph

FINITE = st.floats(-1e12, 1e12)


@given(FINITE, FINITE, st.booleans())
def test_ticks_enclose_what_is_shown(one: float, other: float, whole: bool) -> None:
    low, high = min(one, other), max(one, other)
    found = ticks(low, high, 8, integer=whole)
    step = found[1] - found[0]
    assert 2 <= len(found) <= 10
    assert found[0] - step * 1e-6 <= low <= high <= found[-1] + step * 1e-6


@pytest.mark.parametrize(
    ("low", "high", "whole", "expected"),
    [
        (0, 1, False, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 3, True, [0, 1, 2, 3]),
        (5, 5, True, [5, 6]),
        (-0.5, 0.5, False, [-0.6, -0.4, -0.2, 0, 0.2, 0.4, 0.6]),
    ],
)
def test_ticks_are_round(low: float, high: float, whole: bool, expected: list[float]) -> None:
    assert ticks(low, high, 7, integer=whole) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "step", "text"), [(0.2, 0.1, "0.2"), (100, 50, "100"), (-0.0, 0.5, "0.0"), (0.25, 0.05, "0.25")]
)
def test_a_tick_has_as_many_digits_as_it_needs(value: float, step: float, text: str) -> None:
    assert tick_label(value, step) == text


def test_a_long_run_is_thinned_to_means() -> None:
    points = [(float(x), 1.0) for x in range(10_000)]
    thin = downsample(points)
    assert len(thin) <= MAX_POINTS
    assert {y for _, y in thin} == {1.0}


def test_a_trend_keeps_a_straight_line() -> None:
    points = [(float(x), 2.0 * x) for x in range(100)]
    assert [y for _, y in trend(points)] == pytest.approx([y for _, y in points])


def test_what_is_not_finite_is_left_out() -> None:
    odd = Series("reward", ((0.0, math.nan), (1.0, math.inf), (2.0, 0.5)))
    sound = Series("reward", ((2.0, 0.5),))
    assert draw(odd) == draw(sound)


def test_a_chart_without_a_point_is_drawn() -> None:
    assert draw(Series("reward", ())) != draw(Series("reward", ((0.0, 1.0),)))


def test_lines_beyond_the_edge_are_left_out() -> None:
    canvas = Canvas(4, 4, (255, 255, 255))
    canvas.path([(-10, -10), (20, 20)], (0, 0, 0))
    assert len(canvas.png()) > 0


@pytest.mark.parametrize("character", [*GLYPHS, " ", "é", "漢"])
def test_every_character_has_a_shape(character: str) -> None:
    strokes, advance = glyph(character)
    assert advance > 0
    assert bool(strokes) != character.isspace()


def draw(*series: Series) -> bytes:
    return render_chart(series, title="t", subtitle="s", x_label="step", y_label="reward")
