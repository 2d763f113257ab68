"""A tiny model learns from chosen rollouts, and another learns from it."""

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
RUN, STEPS, DISTILLED = "taught", 20, 30
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


@pytest.fixture(scope="module")
def told(learning_engine: SkyrlEngine, taught: Taught) -> dict[str, Any]:
    """What the weights of the run say, and what a student made of them."""
    process = [sys.executable, "-m", "tests.engines.skyrl.distil_steps", learning_engine.url, learning_engine.model]
    done = subprocess.run(
        [*process, RUN, str(DISTILLED)],
        env=variables(taught.home),
        stdout=subprocess.PIPE,
        check=True,
        cwd=ROOT,
        timeout=1200,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    print(json.dumps({name: answer[name] for name in ("logprobs", "kl")}))
    return answer


def test_the_loss_falls_on_a_fixed_set(taught: Taught) -> None:
    losses = [line["train/loss"] for line in read_metrics(taught.folder / "metrics.jsonl")]
    print(" ".join(f"{loss:.3f}" for loss in losses))
    assert (taught.result["ended"], len(losses)) == ("complete", STEPS)
    assert losses[-1] < losses[0] / 5


def test_the_loss_of_a_step_is_the_mean_over_sampled_tokens(taught: Taught) -> None:
    first = read_metrics(taught.folder / "metrics.jsonl")[0]
    assert first["tokens/trained"] == sum(sum(sequence.mask) for sequence in GOOD)
    assert first["train/loss"] == pytest.approx(-first["logprobs/mean_training"])


def test_the_chosen_answers_become_likely_and_the_others_do_not(told: dict[str, Any]) -> None:
    before, after = told["logprobs"]["base"], told["logprobs"]["teacher"]
    assert after["good"] > before["good"] + 3
    assert after["bad"] < before["bad"] + 1


def test_the_first_loss_is_what_the_sampler_says_of_the_base_model(taught: Taught, told: dict[str, Any]) -> None:
    first = read_metrics(taught.folder / "metrics.jsonl")[0]
    assert first["logprobs/mean_training"] == pytest.approx(told["logprobs"]["base"]["good"], abs=1e-3)


def test_a_student_comes_to_its_teacher(told: dict[str, Any]) -> None:
    first, last = told["kl"][0], min(told["kl"][-3:])
    assert first > 0
    assert last < first / 5


def test_a_complete_run_goes_on_with_more_epochs(taught: Taught, told: dict[str, Any]) -> None:
    assert taught.again()["step"] == STEPS
    assert taught.again("--epochs", str(STEPS + 2))["step"] == STEPS + 2


def test_the_weights_of_the_run_are_exported(taught: Taught, tmp_path: Path) -> None:
    command = ["-m", "hermes_rl", "export", RUN, "--to", "peft", "-o", str(tmp_path / "peft")]
    subprocess.run([sys.executable, *command], env=variables(taught.home), check=True, timeout=120)
    assert (tmp_path / "peft" / "adapter_model.safetensors").is_file()
    assert "random" in (tmp_path / "peft" / "README.md").read_text()
