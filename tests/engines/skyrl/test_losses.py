"""Our account of the losses against SkyRL's own functions, and what its gradients make of examples we changed."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.engines.protocol import Example
from hermes_rl.training.objectives import Objective, TrainedSequence, get_objective, trained_sequence

SCRIPT = Path(__file__).parents[3] / "scripts" / "engine_environment"
INSIDE = Path(__file__).with_name("skyrl_losses.py")
CLIP = (0.8, 1.2)
pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def skyrl_python() -> Path:
    home = subprocess.check_output([SCRIPT, "skyrl"], text=True, timeout=2200).strip()
    return Path(home) / "bin" / "python"


def random_example(seed: int, size: int = 400) -> tuple[Example, NDArray[np.float32]]:
    """An example in which a third is context, and logprobs now that are up to three apart from those sampled."""
    random = np.random.default_rng(seed)
    mask = (random.random(size) > 1 / 3).astype(np.float32)
    sampled = (-random.exponential(2.0, size)).astype(np.float32) * mask
    now = np.where(mask != 0, sampled, -5) + random.uniform(-3, 3, size)
    ids = np.arange(size + 1)
    advantages = random.normal(size=size).astype(np.float32) * mask
    return Example(ids[:-1], ids[1:], sampled, advantages, mask), np.minimum(now, 0).astype(np.float32)


def objective(loss: str, **settings: Any) -> Objective:
    return get_objective(TrainerSettings(**{"loss": loss, "max_importance_weight": None} | settings))


def sequence(example: Example, now: NDArray[np.float32]) -> TrainedSequence:
    return trained_sequence(example, now, group=0, rollout=0, score=0.0)


def at_skyrl(
    python: Path, loss: str, example: Example, now: NDArray[np.float32], clip: tuple[float, float] = CLIP
) -> dict[str, Any]:
    asked = {
        "loss": loss,
        "clip": clip,
        "logprobs": now.tolist(),
        # Our requests have no weights, and then SkyRL weighs every token by 1: what was not sampled has no advantage.
        "mask": [1.0] * len(now),
        "sampled": example.logprobs.tolist(),
        "advantages": example.advantages.tolist(),
    }
    said = subprocess.run(
        [python, INSIDE], input=json.dumps(asked), stdout=subprocess.PIPE, text=True, check=True, timeout=300
    )
    answer: dict[str, Any] = json.loads(said.stdout)
    return answer


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo"])
def test_losses_and_weights_are_those_skyrl_computes(skyrl_python: Path, loss: str) -> None:
    example, now = random_example(seed=1)
    said = at_skyrl(skyrl_python, loss, example, now)
    made, one = objective(loss), sequence(example, now)
    assert made.losses([one])[0] == pytest.approx(said["losses"], rel=1e-5, abs=1e-5)
    assert -made.weights([one])[0] == pytest.approx(said["gradients"], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("loss", "settings"), [("importance_sampling", {"max_importance_weight": 2.0}), ("reinforce", {})]
)
def test_the_engine_loss_of_an_objective_has_its_weights(
    skyrl_python: Path, loss: str, settings: dict[str, Any]
) -> None:
    example, now = random_example(seed=2)
    made = objective(loss, **settings)
    assert made.engine_loss is not None
    assert made.engine_loss.clip is not None
    said = at_skyrl(skyrl_python, made.engine_loss.name, example, now, made.engine_loss.clip)
    assert -made.weights([sequence(example, now)])[0] == pytest.approx(said["gradients"], rel=1e-5, abs=1e-6)
