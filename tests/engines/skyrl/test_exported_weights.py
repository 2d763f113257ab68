"""Weights trained on a real engine, exported, and computed with by others: they must say what the trainer says."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hermes_rl.training.vllm_fleet.fleet import VllmFleet
from hermes_rl.training.vllm_fleet.membership import VllmTimeouts
from scripts.hf_model import model_folder, vllm_python
from tests.engines.conftest import TokenEndpoint, running_vllm
from tests.support.skyrl_engine import SkyrlEngine

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(1200)]

INSIDE = Path(__file__).with_name("peft_merge.py")
STEPS = Path(__file__).with_name("train_steps.py")
# Two programs that add up in another order.
NOISE = 2e-5
TIMES = VllmTimeouts(patience=60.0)


@dataclass(frozen=True, slots=True)
class Trained:
    """Sequences, the logprobs that the trainer gives them after some steps, and its weights as they were exported."""

    sequences: list[list[int]]
    logprobs: NDArray[np.float32]
    peft: Path
    merged: Path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    home = tmp_path_factory.mktemp("trained")
    options = ("--rank", "8", "--samples", "4", "--micro-batch", "4")
    with SkyrlEngine(model_folder("tiny"), home / "home", *options) as engine:
        told = json.loads(subprocess.check_output([sys.executable, STEPS, engine.url, engine.model], timeout=600))
        for form in ("peft", "merged"):
            command = [
                "hermes_rl",
                "export",
                told["sampler"],
                "--base-url",
                engine.url,
                "--to",
                form,
                "-o",
                home / form,
            ]
            subprocess.run([sys.executable, "-m", *command], check=True, timeout=60)
    return Trained(told["sequences"], np.array(told["logprobs"], np.float32), home / "peft", home / "merged")


async def scored(fleet: VllmFleet, sequences: list[list[int]]) -> NDArray[np.float32]:
    rows = [(await fleet.logprobs(tokens))[1] for tokens in sequences]
    return np.array([row[1:] for row in rows], np.float32)


async def test_the_merged_model_in_vllm_gives_the_trainers_logprobs(trained: Trained, tmp_path: Path) -> None:
    with running_vllm(trained.merged, tmp_path / "log.txt", name="merged") as (served, _):
        async with VllmFleet([served.root], run="merged", timeouts=TIMES) as fleet:
            await fleet.load(0, None)
            apart = np.abs(await scored(fleet, trained.sequences) - trained.logprobs)
    print(f"merged: mean {apart.mean():.2g}, largest {apart.max():.2g}")
    assert apart.max() < NOISE


async def test_the_adapter_in_vllm_gives_the_trainers_logprobs(trained: Trained, lora_vllm: TokenEndpoint) -> None:
    async with VllmFleet([lora_vllm.root], run="peft", timeouts=TIMES) as fleet:
        await fleet.load(0, None)
        base = np.abs(await scored(fleet, trained.sequences) - trained.logprobs)
        await fleet.load(1, trained.peft)
        apart = np.abs(await scored(fleet, trained.sequences) - trained.logprobs)
    print(f"peft: mean {apart.mean():.2g}, largest {apart.max():.2g}; the base model: {base.mean():.2g}")
    assert apart.max() < NOISE < 0.1 < base.mean()


def test_the_merge_is_pefts_own(trained: Trained) -> None:
    command = [vllm_python(), INSIDE, model_folder("tiny"), trained.peft, trained.merged]
    said = json.loads(subprocess.check_output(command, text=True, timeout=300))
    assert (said["missing"], said["largest"] < 1e-6 < said["changed"]) == ([], True), said
