"""Our account of the losses against SkyRL's own functions, and what its gradients make of examples we changed."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hermes_rl.extensions import OBJECTIVES
from hermes_rl.training.engines.protocol import Example
from hermes_rl.training.loss import importance_ratios, truncate_importance_weights
from hermes_rl.training.objectives import get_objective

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


def at_skyrl(python: Path, loss: str, example: Example, now: NDArray[np.float32]) -> dict[str, Any]:
    asked = {
        "loss": loss,
        "clip": CLIP,
        "logprobs": now.tolist(),
        # Our requests say no weights, and then SkyRL weighs every token by 1: what was not sampled has no advantage.
        "mask": [1.0] * len(now),
        "sampled": example.logprobs.tolist(),
        "advantages": example.advantages.tolist(),
    }
    said = subprocess.run(
        [python, INSIDE], input=json.dumps(asked), stdout=subprocess.PIPE, text=True, check=True, timeout=300
    )
    answer: dict[str, Any] = json.loads(said.stdout)
    return answer


@pytest.mark.parametrize("loss", sorted(OBJECTIVES.builtin))
def test_the_loss_of_each_token_is_the_one_skyrl_computes(skyrl_python: Path, loss: str) -> None:
    example, now = random_example(seed=1)
    said = at_skyrl(skyrl_python, loss, example, now)
    assert get_objective(loss).token_losses(example, now, CLIP) == pytest.approx(said["losses"], rel=1e-5, abs=1e-5)


def test_the_gradient_of_truncated_examples_is_the_advantage_by_the_truncated_weight(skyrl_python: Path) -> None:
    example, now = random_example(seed=2)
    [made] = truncate_importance_weights([example], [now], 2.0)
    said = at_skyrl(skyrl_python, "importance_sampling", made, now)
    due = -np.minimum(importance_ratios(example, now), 2.0) * example.advantages
    assert said["gradients"] == pytest.approx(due, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("loss", sorted(OBJECTIVES.builtin))
def test_at_the_weights_that_sampled_every_loss_has_the_gradient_of_the_policy(skyrl_python: Path, loss: str) -> None:
    example, _ = random_example(seed=3)
    said = at_skyrl(skyrl_python, loss, example, example.logprobs)
    assert said["gradients"] == pytest.approx(-example.advantages, rel=1e-5, abs=1e-6)
