"""`hermes-rl forecast`: a sample through a real endpoint, the saved forecast, and its comparison with a run."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.cli.forecast import forecast
from hermes_rl.cli.run.live import forecast_text
from hermes_rl.console.run_command import run_click
from hermes_rl.core.paths import rl_home
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.sinks.metrics_file import read_metrics
from tests.cli.test_command import hermes_rl
from tests.support.recorded_runs import make_run, run_file
from tests.support.scripted_model import ScriptedModel, Text, always, delayed

ENVIRONMENT = Path(__file__).parents[2] / "examples" / "plain_text_env.py"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))


async def forecasted(*arguments: str) -> tuple[int, dict[str, Any], int]:
    """The exit code, what --json printed, and the most requests that were open at once."""
    async with ScriptedModel(delayed(0.2, always(Text("plain words")))) as model:
        endpoint = ["--url", model.base_url, "-m", model.model_name]
        arguments = ("forecast", str(ENVIRONMENT), *endpoint, "--budget", "24", "--json", *arguments)
        done = await asyncio.to_thread(hermes_rl, *arguments)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout), model.peak


async def test_six_items_of_equal_rewards_are_too_few_for_a_no_go_and_the_forecast_is_saved() -> None:
    code, found, _ = await forecasted()
    assert (code, found["verdict"]) == (0, "uncertain")
    assert (found["items"], found["rollouts"]) == (6, 24)
    assert found["zero_signal"][2] == 1.0
    assert found["memory_mb"] > 10
    assert len(found["by_item"]) == 6
    saved = json.loads((rl_home() / "forecasts" / "plain_text.json").read_bytes())
    assert saved["zero_signal"] == found["zero_signal"]


async def test_as_many_rollouts_are_in_flight_as_in_the_run() -> None:
    # One group of 16 at once in the run: four groups of 4 in the sample.
    _, _, peak = await forecasted("--env.max_num_workers", "1")
    assert 8 < peak <= 16


def run_after(document: dict[str, Any]) -> RunPaths:
    """A run of `plain_text` whose only step has the figures of the forecast, but twice its tokens."""
    path = rl_home() / "forecasts" / "plain_text.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    os.utime(path, (1, 1))
    paths = make_run(file=run_file("r1", ["plain_text"]))
    row = {
        "step": 1, "time": 10.0, "time/step": 5.0, "time/wait": 2.0, "groups/total": 4, "groups/zero_signal": 2,
        "tokens/total": 2000,
    }  # fmt: skip
    (paths.folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert read_metrics(paths.folder / "metrics.jsonl")
    return paths


SAVED = {
    "plan": {"steps": 20, "optimizer_seconds": 0.0},
    "zero_signal": [0.5, 0.4, 0.6],
    "step_tokens": [1000, 900, 1100],
    "step_seconds": [2.0, 1.0, 3.0],
}


def test_the_check_says_what_was_off_and_by_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    run_after(SAVED)
    assert run_click(forecast, [str(ENVIRONMENT), "--check", "r1", "--json"], prog_name="forecast") == 1
    zero, tokens, seconds = json.loads(capsys.readouterr().out)
    assert (zero["inside"], tokens["inside"], seconds["inside"]) == (True, False, True)
    assert tokens["error"] == pytest.approx(1.0)
    assert run_click(forecast, [str(ENVIRONMENT), "--check", "r1"], prog_name="forecast") == 1
    shown = capsys.readouterr().err
    assert "+100%" in shown
    assert "about 20 steps: check again" in shown


def test_the_status_of_a_run_compares_it_with_the_forecast_that_was_made_before() -> None:
    paths = run_after(SAVED)
    assert forecast_text(paths.run_id) == (
        "first 1 of 20 steps: groups with equal scores 0.5 inside [0.4, 0.6], "
        "tokens per step 2,000 outside [900, 1,100], seconds per step 2 inside [1, 3]"
    )


def test_a_forecast_made_after_the_run_began_is_not_compared() -> None:
    paths = run_after(SAVED)
    os.utime(rl_home() / "forecasts" / "plain_text.json")
    os.utime(paths.file, (1, 1))
    assert forecast_text(paths.run_id) == ""


def test_an_unreadable_forecast_does_not_break_the_status() -> None:
    paths = run_after({"plan": {}})
    assert forecast_text(paths.run_id) == ""
