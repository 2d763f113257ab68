"""Each part of a training run killed once while it holds work; scripts/training_chaos.py does it ten times each."""

from pathlib import Path

import pytest

from scripts.hf_model import model_folder
from tests.chaos.training.training_chaos import ENGINE, disturbed, plain_text_run
from tests.support.skyrl_engine import SkyrlEngine

pytestmark = pytest.mark.long


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_whose_every_part_is_killed_ends_with_each_batch_learned_from_once(tmp_path: Path) -> None:
    with SkyrlEngine(model_folder("tiny"), tmp_path / "engine", *ENGINE) as engine:
        run = plain_text_run(tmp_path / "run", engine, steps=14, seed=0)
        outcome = disturbed(run, engine, kills=1, seed=0, most_seconds=600)
    for kill in outcome.kills:
        print(f"killed {kill.part} at step {kill.step}, which held {kill.held}")
    assert outcome.breaches == []
    assert len(outcome.kills) == 4
