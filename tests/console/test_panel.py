import io
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hermes_rl.console.panel import Panel, format_counts, render_panel, sparkline, timing_text


def drawn(panel: Panel, width: int = 100) -> str:
    screen = Console(file=io.StringIO(), record=True, width=width)
    screen.print(render_panel(panel, now=160.0))
    return screen.export_text()


def test_a_sparkline_rises_with_the_rewards() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"


def test_rewards_that_are_all_the_same_do_not_look_like_the_best() -> None:
    assert sparkline([0.1] * 5) == "▁▁▁▁▁"


def test_rewards_outside_of_0_to_1_are_drawn_between_the_least_and_the_most() -> None:
    assert sparkline([-3.0, 5.0]) == "▁█"


@given(st.lists(st.floats(-1e6, 1e6), max_size=300))
def test_a_sparkline_is_never_longer_than_its_width(values: list[float]) -> None:
    assert len(sparkline(values, 32)) == min(len(values), 32)


def test_a_look_tells_how_far_it_is_how_fast_and_how_long_it_may_take() -> None:
    panel = Panel("process · words", {}, done=30, total=90, began=100.0)
    assert timing_text(panel, 160.0) == "0:01:00  30/min  0:02:00 left"


def test_what_was_done_before_does_not_count_for_the_speed() -> None:
    panel = Panel("process · words", {}, done=30, total=30, began=100.0, before=24)
    assert timing_text(panel, 160.0) == "0:01:00  6/min"


def test_the_rewards_stand_beside_the_score() -> None:
    text = drawn(Panel("train", {"state": "running", "score": "mean 0.500"}, rewards=[0.0, 1.0]))
    assert "mean 0.500   ▁█" in text


def test_text_of_others_is_drawn_as_it_is() -> None:
    assert "[red]no[/red] colour" in drawn(Panel("serve", {"waiting": "[red]no[/red] colour"}))


def test_a_narrow_terminal_loses_no_line_of_the_panel() -> None:
    text = drawn(Panel("serve · words", {"score": "mean 0.1", "not scored": "endpoint/timeout 3"}, done=1, total=9), 40)
    assert "endpoint/timeout 3" in " ".join(text.split())


def test_the_most_frequent_causes_are_named_and_the_others_counted() -> None:
    causes = Counter({f"cause {number}": number for number in range(1, 8)})
    assert format_counts(causes) == "cause 7 7, cause 6 6, cause 5 5, cause 4 4 and 3 other causes"
