"""A tiny model learns from chosen rollouts on the real engine."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.sinks.metrics_file import read_metrics
from tests.engines.skyrl.sft_data import GOOD, write_groups
from tests.support.skyrl_engine import SkyrlEngine

ROOT = Path(__file__).parents[3]
RUN, STEPS = "taught", 20
pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]


@dataclass(frozen=True, slots=True)
class Taught:
    home: Path
    command: list[str]
    result: dict[str, Any]

    @property
    def folder(self) -> Path:
        return self.home / "rl" / "runs" / RUN

    def again(self, *options: str) -> dict[str, Any]:
        done = subprocess.run(
            [*self.command, *options], env=variables(self.home), stdout=subprocess.PIPE, check=True, timeout=600
        )
        result: dict[str, Any] = json.loads(done.stdout)
        return result


def variables(home: Path) -> dict[str, str]:
    return {**os.environ, "HERMES_HOME": str(home), "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def taught(learning_engine: SkyrlEngine, tmp_path_factory: pytest.TempPathFactory) -> Taught:
    """A run of the command on the better one of each pair."""
    home = tmp_path_factory.mktemp("taught")
    settings = {
        "base_url": learning_engine.url,
        "base_model": learning_engine.model,
        "lora_rank": 8,
        "batch_size": 8,
        "learning_rate": 0.01,
        "use_wandb": "false",
    }
    command = [sys.executable, "-m", "hermes_rl", "trainer", "sft", "--json", "--run", RUN, "--epochs", str(STEPS)]
    command.append(str(write_groups(home / "groups.jsonl", learning_engine.model)))
    command += [word for name, value in settings.items() for word in (f"--tinker.{name}", str(value))]
    return Taught(home, command, Taught(home, command, {}).again())


def test_the_loss_falls_on_a_fixed_set(taught: Taught) -> None:
    losses = [line["train/loss"] for line in read_metrics(taught.folder / "metrics.jsonl")]
    print(" ".join(f"{loss:.3f}" for loss in losses))
    assert (taught.result["ended"], len(losses)) == ("complete", STEPS)
    assert losses[-1] < losses[0] / 5


def test_the_loss_of_a_step_is_the_mean_over_sampled_tokens(taught: Taught) -> None:
    first = read_metrics(taught.folder / "metrics.jsonl")[0]
    assert first["tokens/trained"] == sum(sum(sequence.mask) for sequence in GOOD)
    assert first["train/loss"] == pytest.approx(-first["logprobs/mean_training"])


def test_a_complete_run_goes_on_with_more_epochs(taught: Taught) -> None:
    assert taught.again()["step"] == STEPS
    assert taught.again("--epochs", str(STEPS + 2))["step"] == STEPS + 2


def test_another_run_starts_from_its_weights(taught: Taught) -> None:
    losses = [line["train/loss"] for line in read_metrics(taught.folder / "metrics.jsonl")]
    command = [word if word != RUN else "further" for word in taught.command]
    Taught(taught.home, command, {}).again("--tinker.init_from", RUN, "--epochs", "1")
    [first] = read_metrics(taught.folder.with_name("further") / "metrics.jsonl")
    assert first["train/loss"] < losses[0] / 5


def test_the_weights_of_the_run_are_exported(taught: Taught, tmp_path: Path) -> None:
    command = ["-m", "hermes_rl", "export", RUN, "--to", "peft", "-o", str(tmp_path / "peft")]
    subprocess.run([sys.executable, *command], env=variables(taught.home), check=True, timeout=120)
    assert (tmp_path / "peft" / "adapter_model.safetensors").is_file()
    assert "random" in (tmp_path / "peft" / "README.md").read_text()
