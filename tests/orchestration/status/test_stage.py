"""What a starting component is doing, from its log."""

from pathlib import Path

import pytest

from hermes_rl.cli.run.live import component_states, problems
from hermes_rl.orchestration.status.stage import component_stage


@pytest.mark.parametrize(
    ("line", "stage"),
    [
        ("engine 0/1  loading the weights, 12 s", "loading the weights"),
        ("SkyRL's environment 1/3  install SkyRL, JAX", "install SkyRL, JAX"),
        (
            "serve words  serving · turns 16 in flight: turn 1, 0 tokens · groups 0 made",
            "16 in flight: turn 1, 0 tokens",
        ),
        ('{"url": "http://127.0.0.1:1"}', None),
        ("", None),
    ],
)
def test_the_last_line_of_a_log_is_the_stage(tmp_path: Path, line: str, stage: str | None) -> None:
    log = tmp_path / "engine.log"
    log.write_text(f"an older line\n{line}\n" if line else "")
    assert component_stage(log) == stage


def test_a_component_without_a_log_has_no_stage(tmp_path: Path) -> None:
    assert component_stage(tmp_path / "none.log") is None


def test_a_stage_is_shown_beside_the_state() -> None:
    report = {"processes": {"engine": {"status": "starting", "stage": "loading the weights"}}}
    assert component_states(report) == {"engine": "starting (loading the weights)"}


def test_the_diagnosis_of_an_environment_is_a_problem_of_the_run() -> None:
    report = {
        "processes": {},
        "status": "running",
        "environments": [{"name": "words", "metrics": {"diagnosis": "0 tool calls"}}],
    }
    assert problems(report) == ["words: 0 tool calls"]
