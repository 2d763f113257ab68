"""Four minutes of faults on a whole run; scripts/stack_chaos.py does it for two hours."""

import os
from pathlib import Path

import pytest

from scripts.hf_model import model_folder
from tests.chaos.stack.chaos import carried_out, missing
from tests.chaos.stack.report import broken
from tests.support.skyrl_engine import skyrl_environment

pytestmark = pytest.mark.long

# Its fourteen faults end the engine, its worker, the API, the environment and a sandbox, among others.
SEED, MINUTES = 2055, 4.0
LEAST_FAULTS, LEAST_KINDS = 12, 12


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_four_minutes_of_faults_lose_double_leak_and_score_nothing(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make the namespaces and the disk of a chaos")
    assert missing() == []
    told = carried_out(tmp_path, SEED, [MINUTES], model_folder("tiny"), skyrl_environment())
    print((tmp_path / "report.md").read_text())
    assert broken(told) == []
    assert told["struck"] >= LEAST_FAULTS and told["kinds"] >= LEAST_KINDS
