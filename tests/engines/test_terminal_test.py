"""terminal_test end to end on a real model: real tool calls in real sandboxes, some of them right."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_rl.store.records import read_groups
from tests.engines.conftest import Endpoint

ROOT = Path(__file__).parents[2]
PROCESS = [sys.executable, str(ROOT / "environments" / "terminal_test_env.py"), "process"]
EVALUATE = [sys.executable, "-m", "hermes_rl", "evaluate", "terminal_test"]


def run(command: list[str], model: Endpoint, folder: Path) -> subprocess.CompletedProcess[str]:
    flags = ["--openai.base_url", model.base_url, "--openai.model_name", model.model_name, "--json"]
    done = subprocess.run([*command, *flags], cwd=folder, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_small_model_makes_tool_calls_and_some_are_right(small_model: Endpoint, tmp_path: Path) -> None:
    # Nearly all rollouts succeed at this temperature; at 1 it is 28%, which takes 32 rollouts to be sure of a success.
    flags = ["--env.total_steps", "2", "--env.group_size", "4", "--env.max_num_workers", "2"]
    flags += ["--env.agent_temperature", "0.2"]
    summary = json.loads(run([*PROCESS, *flags], small_model, tmp_path).stdout)
    assert (summary["rollouts"], summary["scored"], summary["failures"]) == (8, 8, {})
    groups = list(read_groups(tmp_path / summary["path"]))
    assert any(rollout.tool_uses for group in groups for rollout in group.rollouts)
    assert any(score == 1.0 for group in groups for score in group.scores)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_evaluation_writes_its_files_and_shows_its_progress(small_model: Endpoint, tmp_path: Path) -> None:
    flags = ["--env.eval_size", "8", "--env.data_dir_to_save_evals", "evals"]
    done = run([*EVALUATE, *flags], small_model, tmp_path)
    metrics = json.loads((tmp_path / "evals" / "metrics.json").read_text())["metrics"]
    assert (metrics["eval/rollouts"], metrics["eval/scored"]) == (8, 8)
    assert len((tmp_path / "evals" / "samples.jsonl").read_text().splitlines()) == 8
    assert "evaluate 8/8" in done.stderr
    assert "eval/mean_reward" in done.stderr
