"""The real engine's update on a frozen batch against torch and against TRL's own losses.

Not compared with hand-written expectations: a process of the trainer's own code steps the engine, and a process that
shares no code with it computes the gradient.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engines.skyrl.parity.cases import CASES
from tests.support.skyrl_engine import SkyrlEngine

ROOT = Path(__file__).parents[4]
REFERENCE = Path(__file__).with_name("torch_reference.py")
pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(2400)]
LARGEST_ERROR, LARGEST_DRIFT = 1e-4, 1e-3


@pytest.fixture(scope="module")
def torch_python() -> Path:
    """Of the environment that has torch, PEFT and TRL."""
    command = [str(ROOT / "scripts" / "engine_environment"), "trl"]
    return Path(subprocess.check_output(command, text=True, timeout=2200).strip()) / "bin" / "python"


def engine_process(engine: SkyrlEngine, out: Path, *options: str) -> Path:
    command = [sys.executable, "-m", "tests.engines.skyrl.parity.engine_updates", engine.url, engine.model, str(out)]
    subprocess.run([*command, *options], check=True, cwd=ROOT, timeout=1500)
    return out


def compared(python: Path, model: str, arrays: Path, *options: str) -> dict[str, Any]:
    command = [str(python), str(REFERENCE), model, str(arrays), *options]
    said = subprocess.run(command, check=True, cwd=arrays.parent, stdout=subprocess.PIPE, text=True, timeout=1500)
    answer: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    print(json.dumps(answer, indent=1))
    return answer


@pytest.fixture(scope="module")
def updates(skyrl_engine: SkyrlEngine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return engine_process(skyrl_engine, tmp_path_factory.mktemp("updates") / "updates.npz")


def test_every_aggregation_and_ratio_option_has_the_gradient_of_torch(
    skyrl_engine: SkyrlEngine, updates: Path, torch_python: Path
) -> None:
    errors = compared(torch_python, skyrl_engine.model, updates)
    assert set(errors) == set(CASES)
    assert {case: error for case, error in errors.items() if not error <= LARGEST_ERROR} == {}


def test_the_gradient_is_that_of_trl(skyrl_engine: SkyrlEngine, updates: Path, torch_python: Path) -> None:
    errors = compared(torch_python, skyrl_engine.model, updates, "--trl")
    assert len(errors) == 6
    assert {case: error for case, error in errors.items() if not error <= LARGEST_ERROR} == {}


def test_thirty_steps_with_adam_stay_with_torch(skyrl_engine: SkyrlEngine, tmp_path: Path, torch_python: Path) -> None:
    arrays = engine_process(skyrl_engine, tmp_path / "steps.npz", "--steps", "30")
    distances = compared(torch_python, skyrl_engine.model, arrays, "--steps", "30")
    assert set(distances) == {"1", "3", "10", "30"}
    assert max(distances.values()) < LARGEST_DRIFT
