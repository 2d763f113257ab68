"""What a person sees of `serve`: the state in words, on a terminal and without one."""

import asyncio
import io
import time
from dataclasses import dataclass
from typing import Any

import pytest
from rich.console import Console

from hermes_rl.console.live_display import console
from hermes_rl.console.panel import render_panel
from hermes_rl.rollout.metrics import RolloutCounts
from hermes_rl.serving.display import ServeStats, show_stats, stats_panel, stats_rows, status_line


@dataclass
class Delivery:
    spooled: int = 0
    posted: int = 7
    refused: int = 0
    away_since: float | None = None
    last_error: str | None = None


def board(**fields: Any) -> ServeStats:
    made = ServeStats("counting", "http://api", "scripted at http://model", 100, RolloutCounts(), 6, 4)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_what_there_is_nothing_to_say_about_is_left_out() -> None:
    assert not {"waiting", "not scored", "withheld", "delivery", "evaluation"} & stats_rows(board()).keys()


def test_rollouts_are_counted_by_groups_of_their_size() -> None:
    assert stats_rows(board(groups_running=2, groups_begun=5))["rollouts"].startswith("8 running of 20 started")


def test_an_api_that_is_away_is_told_with_what_waits_for_it() -> None:
    delivery = Delivery(spooled=3, away_since=time.time() - 12, last_error="refused")
    told = stats_rows(board(delivery=delivery))["delivery"]
    assert told == "7 posted, 0 refused, 3 in the spool; the API has not answered for 12 s (refused)"


def test_one_line_holds_why_it_waits() -> None:
    told = status_line(board(state="serving", version=3, waiting="the queue is full"))
    assert "waiting the queue is full" in told
    assert "policy version 3 of 100" in told
    assert "\n" not in told


def test_an_outage_is_shown_while_it_lasts() -> None:
    assert stats_rows(board(outage=lambda: "paused for 3 s: no answer"))["paused"] == "paused for 3 s: no answer"
    assert "paused" not in stats_rows(board())


def test_steps_that_made_no_version_are_shown() -> None:
    assert stats_rows(board(version=3, steps=5))["policy"] == "version 3, step 5 of 100"
    assert stats_panel(board(version=3, steps=5)).done == 5


def test_many_causes_are_shortened() -> None:
    shown = board()
    shown.tally.failures.update({f"endpoint/http_{status}": 1 for status in range(500, 507)})
    assert stats_rows(shown)["not scored"].endswith("and 3 other causes")


def test_text_of_others_is_drawn_as_it_is() -> None:
    screen = Console(file=io.StringIO(), record=True, width=100)
    screen.print(render_panel(stats_panel(board(waiting="[red]no[/red] colour"))))
    assert "[red]no[/red] colour" in screen.export_text()


async def test_without_a_terminal_there_is_a_line_at_the_beginning_and_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = board()
    async with show_stats(shown):
        await asyncio.sleep(0)
        shown.state = "ended"
    assert [told.split()[2] for told in capsys.readouterr().err.splitlines()] == ["starting", "ended"]


async def test_what_others_print_stays_whole_above_the_dashboard(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    async with show_stats(board()):
        before = len(capsys.readouterr().err)
        console().print("a table of its own")
        told = capsys.readouterr().err
    assert before
    assert told.index("a table of its own") < told.index("serve · counting")
