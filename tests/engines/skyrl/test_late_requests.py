"""Requests that come in while the engine looks for some."""

import json
import subprocess
from pathlib import Path

import pytest

import hermes_rl.training.engines.skyrl

ROOT = Path(__file__).parents[3]
INSIDE = Path(hermes_rl.training.engines.skyrl.__file__).with_name("inside")
pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(2400)]


def test_no_step_is_taken_before_its_gradients(tmp_path: Path) -> None:
    home = subprocess.check_output([ROOT / "scripts" / "engine_environment", "skyrl"], text=True, timeout=2200).strip()
    command = [Path(home) / "bin" / "python", Path(__file__).with_name("late_requests.py"), INSIDE, tmp_path]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    assert json.loads(said.stdout) == [[], ["forward_backward", "optim_step"]]
