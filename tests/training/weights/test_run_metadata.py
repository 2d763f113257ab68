import json
from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.training.weights.run_metadata import read_run
from tests.training.weights.run_files import run_folder, saved


def test_the_final_weights_are_meant_unless_a_step_is_named(tmp_path: Path) -> None:
    run = read_run(run_folder(tmp_path, [saved(1), saved(2), saved(2, final=True), saved(3)]))
    assert (run.weights(None).step, run.weights(None).final, run.weights(1).version) == (2, True, 2)


def test_without_final_weights_the_last_are_meant(tmp_path: Path) -> None:
    assert read_run(run_folder(tmp_path, [saved(1), saved(2)])).weights(None).step == 2


def test_weights_that_the_engine_let_go_cannot_be_had(tmp_path: Path) -> None:
    run = read_run(run_folder(tmp_path, [saved(1), saved(2), {"deleted": 1}, saved(3)], name="words"))
    with pytest.raises(ConfigError, match="has no checkpoint of step 1; it has 2, 3"):
        run.weights(1)


def test_a_run_that_saved_nothing_says_to_wait(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no checkpoint yet"):
        read_run(run_folder(tmp_path, [], name="words")).weights(None)


def test_rewards_are_those_of_the_step_as_it_was_taken_last(tmp_path: Path) -> None:
    metrics = [{"step": 2, "reward/mean": 0.1}, {"step": 1, "reward/mean": 0.5}, {"step": 2, "reward/mean": 0.7}]
    assert read_run(run_folder(tmp_path, [], metrics)).rewards == {1: 0.5, 2: 0.7}


def test_steps_that_a_run_went_back_behind_do_not_count(tmp_path: Path) -> None:
    metrics = [{"step": 1, "reward/mean": 0.5}, {"step": 2, "reward/mean": 0.9}, {"step": 1, "reward/mean": 0.6}]
    assert read_run(run_folder(tmp_path, [], metrics)).rewards == {1: 0.6}


def test_environments_are_those_of_the_metrics(tmp_path: Path) -> None:
    metrics = [{"step": 1, "reward/environment/words": 1, "reward/environment/sums": 0}]
    assert read_run(run_folder(tmp_path, [], metrics)).environments == ("words", "sums")


def test_torn_lines_and_missing_files_are_gaps_and_no_errors(tmp_path: Path) -> None:
    (tmp_path / "lineage.jsonl").write_text(json.dumps(saved(1)) + '\n[1]\n{"step": 2, "ver')
    run = read_run(tmp_path)
    assert (run.name, run.weights(None).step, run.rewards) == (tmp_path.name, 1, {})
    assert (tmp_path / "lineage.jsonl").read_text().endswith('"ver')
