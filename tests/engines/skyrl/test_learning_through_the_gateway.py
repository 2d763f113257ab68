"""The same tiny model learns when a program in a sandbox is the agent, and the gateway all that it can reach."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from hermes_rl.core.trajectory import Rollout
from hermes_rl.store.codec import decode
from tests.engines.skyrl.learning import WANTED, learned
from tests.support.skyrl_engine import SkyrlEngine
from tests.support.training_processes import TrainingProcesses

AGENT = Path(__file__).with_name("asking_agent.py")
# Each of the 64 rollouts of a step starts a sandbox and an interpreter in it.
STEPS = 8
# The first test waits for the engine, which may have to compile, and for the run.
pytestmark = [pytest.mark.long, pytest.mark.timeout(1000)]


@pytest.fixture(scope="module")
def run(learning_engine: SkyrlEngine, tmp_path_factory: pytest.TempPathFactory) -> TrainingProcesses:
    return learned(
        learning_engine,
        tmp_path_factory.mktemp("gateway"),
        seed=0,
        steps=STEPS,
        agent_command="python3 agent.py {messages_file}",
        agent_files=json.dumps({"agent.py": str(AGENT)}),
        terminal_backend="bubblewrap",
    )


def rollouts(run: TrainingProcesses) -> list[Rollout]:
    """All that the run was trained on, as the API has them."""
    with closing(sqlite3.connect(run.folder / "trajectories.db")) as database:
        return [rollout for (data,) in database.execute("SELECT data FROM blobs") for rollout in decode(data).rollouts]


def test_it_learns(run: TrainingProcesses) -> None:
    rewards = run.rewards()
    print("through the gateway: " + " ".join(f"{reward:.2f}" for reward in rewards))
    assert len(rewards) == STEPS
    assert 0.35 < rewards[0] < 0.65
    assert max(rewards[-3:]) >= WANTED


def test_on_the_first_step_the_trainer_finds_the_logprobs_that_were_recorded(run: TrainingProcesses) -> None:
    first = run.metrics()[0]
    print(f"largest difference {first['logprobs/diff_max']:.2e}")
    assert first["logprobs/diff_max"] < 1e-4


def test_every_rollout_was_the_programs(run: TrainingProcesses) -> None:
    played = rollouts(run)
    assert len(played) >= STEPS * 64
    assert {rollout.metadata["program"]["exit_code"] for rollout in played} == {0}


def test_every_rollout_has_the_tokens_of_its_one_call(run: TrainingProcesses) -> None:
    played = rollouts(run)
    assert {(rollout.turns_used, len(rollout.sequences)) for rollout in played} == {(1, 1)}
    assert not [rollout for rollout in played if "breaches" in rollout.metadata]
