"""Environments inside the real packages of other trainers, in the environment of scripts/interop_environment."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from scripts.hf_model import model_folder

ROOT = Path(__file__).parents[3]
PLAIN_TEXT = ROOT / "examples" / "plain_text_env.py"
ENVIRONMENT_DEADLINE_S, PROGRAM_DEADLINE_S = 2200.0, 900.0
pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(3600)]
Program: TypeAlias = Callable[..., Any]


@pytest.fixture(scope="module")
def python() -> Path:
    """Of the environment that has the trainers."""
    command = [str(ROOT / "scripts" / "interop_environment"), "trainers"]
    made = subprocess.check_output(command, text=True, timeout=ENVIRONMENT_DEADLINE_S)
    return Path(made.strip()) / "bin" / "python"


@pytest.fixture
def run(python: Path, tmp_path: Path) -> Program:
    """Runs a program of this folder and returns the JSON of its last line."""

    def run(program: str, *arguments: object) -> Any:
        command = [str(python), str(Path(__file__).with_name(program)), *map(str, arguments)]
        said = subprocess.run(
            command, check=True, cwd=tmp_path, stdout=subprocess.PIPE, text=True, timeout=PROGRAM_DEADLINE_S
        )
        print(said.stdout)
        return json.loads(said.stdout.splitlines()[-1])

    return run


@pytest.fixture
def trl(run: Program, tmp_path: Path) -> Program:
    return lambda what: run("trl_program.py", model_folder("tiny"), what, tmp_path)


def test_trl_trains_on_the_recorded_tokens_and_logprobs(trl: Program) -> None:
    said = trl("exact")
    assert said["same_tokens"]
    assert said["sampled"] == said["recorded"] > 0
    assert said["logprob_error"] < 1e-4
    assert said["moved"] == said["parameters"]


def test_the_sequences_of_one_rollout_have_the_gradient_of_torch(trl: Program) -> None:
    said = trl("records")
    assert said["rows"] > said["rollouts"]
    assert said["error"] < 1e-4
    assert "3 sequences" in said["refused"]


def test_a_rollout_func_gives_trl_the_scores_of_the_environment(trl: Program) -> None:
    rewards = trl("function")["rewards"]
    assert len(rewards) == 2
    assert all(0.2 < reward < 0.9 for reward in rewards)


@pytest.mark.parametrize("what", ["learn", "learn-lora"])
def test_trl_learns_plain_text(trl: Program, what: str) -> None:
    rewards = trl(what)["rewards"]
    assert rewards[0] < 0.7
    assert max(rewards) >= 0.95


def test_the_cookbooks_own_loop_collects_and_assembles_rollouts(run: Program) -> None:
    said = run("tinker_cookbook_program.py", PLAIN_TEXT, model_folder("tiny"))
    assert said["rewards"] == [[1.0, 0.5, 1.0, 0.5]] * 2
    assert "Write a word." in said["prompt"]
    assert said["action"].startswith("plain")
    assert said["data"] == 8
    assert said["logprobs"] == [-0.25 * (place + 1) for place in range(len(said["logprobs"]))]
    assert said["copied_item"] == "Write a word."


def test_skyrl_accepts_the_rollouts_as_its_generators_output(run: Program) -> None:
    said = run("skyrl_program.py", PLAIN_TEXT, model_folder("tiny"))
    assert said["interface"]
    assert ["Write a word." in prompt for prompt in said["prompts"]] == [True, True, False, False]
    assert said["rewards"] == [0.5, 0.5, 1.0, 1.0]
    assert said["masks"] == [[1]] * 4
    assert said["logprobs"] == [-0.5]
    assert said["sampling"] == {"temperature": 0.7, "max_tokens": 6}
    assert said["sessions"] == 4


def test_verls_agent_loop_returns_the_rollout_in_its_own_type(run: Program) -> None:
    said = run("verl_program.py", PLAIN_TEXT, model_folder("tiny"))
    assert said["base"]
    assert said["shared"]
    assert "Write a name." in said["prompt"]
    assert said["mask"] == [1] * 4
    assert said["logprobs"] == [-0.5] * 4
    assert said["score"] == 0.5
    assert said["shapes"]["responses"] == said["shapes"]["response_mask"] == [4]


@pytest.fixture
def trl_async(run: Program, tmp_path: Path) -> Program:
    return lambda what: run("trl_async_program.py", model_folder("tiny"), what, tmp_path)


def test_trls_async_trainer_learns_plain_text(trl_async: Program) -> None:
    said = trl_async("learn")
    assert sum(said["rewards"][:2]) / 2 < 0.75
    assert max(said["rewards"]) >= 0.9
    assert max(said["staleness"]) <= 2
    assert said["same_weights"]
    assert said["version"] == len(said["rewards"]) + 1
    assert said["threads"] == []


def test_each_async_sample_was_sampled_by_the_weights_of_its_version(trl_async: Program) -> None:
    said = trl_async("versions")
    assert said["versions"] == [1, 2]
    assert said["own_error"] < 1e-4
    assert said["other_error"] > 1e-2
    assert all(abs(total) < 1e-4 for total in said["advantages"])
    assert said["columns"] == ["int64", "int64", "float32"]
    assert all(0 < sampled <= 8 for sampled in said["sampled"])


def test_async_samples_come_from_a_server_of_tokens(trl_async: Program) -> None:
    said = trl_async("server")
    assert said["versions"] == [7]
    assert said["error"] < 1e-4
