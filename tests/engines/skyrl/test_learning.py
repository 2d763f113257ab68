"""A tiny model learns through the whole product: API, trainer with its inference, and environment as real processes."""

import pytest

from tests.engines.skyrl.learning import WANTED, learned
from tests.support.skyrl_engine import SkyrlEngine
from tests.support.training_processes import TrainingProcesses

STEPS = 15
SEEDS = (0, 1, 2)
# The first test waits for the engine, which may have to compile, and for all three runs.
pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]


@pytest.fixture(scope="session")
def runs(learning_engine: SkyrlEngine, tmp_path_factory: pytest.TempPathFactory) -> list[TrainingProcesses]:
    return [learned(learning_engine, tmp_path_factory.mktemp(f"seed-{seed}"), seed=seed, steps=STEPS) for seed in SEEDS]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_seed_learns(runs: list[TrainingProcesses], seed: int) -> None:
    rewards = runs[seed].rewards()
    print(f"seed {seed}: " + " ".join(f"{reward:.2f}" for reward in rewards))
    assert len(rewards) == STEPS
    assert 0.35 < rewards[0] < 0.65
    assert max(rewards[-3:]) >= WANTED


@pytest.mark.parametrize("seed", SEEDS)
def test_on_the_first_step_the_trainer_finds_the_logprobs_that_were_recorded(
    runs: list[TrainingProcesses], seed: int
) -> None:
    first = runs[seed].metrics()[0]
    print(f"seed {seed}: largest difference {first['logprobs/diff_max']:.2e}")
    assert first["logprobs/diff_max"] < 1e-4


def test_the_metrics_have_every_name_of_the_seed(runs: list[TrainingProcesses]) -> None:
    named = {
        "train/loss",
        "train/learning_rate",
        "reward/mean",
        "logprobs/mean",
        "logprobs/mean_training",
        "logprobs/diff",
        "advantages/mean",
        "advantages/std",
    }
    assert named <= runs[0].metrics()[0].keys()


def test_a_run_that_never_waits_longer_than_a_step_is_never_stale(runs: list[TrainingProcesses]) -> None:
    assert {line["staleness/max"] for line in runs[0].metrics() if "staleness/max" in line} == {0.0}


def test_a_complete_run_says_where_its_final_weights_are(runs: list[TrainingProcesses]) -> None:
    last = runs[0].lineage.last
    assert last is not None and last.final and runs[0].told()["state"] == "complete"
