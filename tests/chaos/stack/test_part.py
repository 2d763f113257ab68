"""A whole part in its namespaces, from its start to its result, over a run that is a stand-in with a planted fault."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.stack.chaos import missing
from tests.chaos.stack.grounds import CHECKOUT, inside
from tests.chaos.stack.planted import ONLY_OF_A_PART, PLANTS

pytestmark = pytest.mark.parts
ALL = PLANTS | ONLY_OF_A_PART


def result(folder: Path, planted: str) -> dict[str, Any]:
    if os.geteuid() != 0:
        pytest.skip("only root can make the namespaces of a chaos")
    assert missing() == []
    command = inside("-m", "tests.chaos.stack.planted", str(folder), planted)
    subprocess.run(command, cwd=CHECKOUT, check=True, timeout=120)
    told: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return told


def test_a_run_that_kept_the_promises_has_no_breach(tmp_path: Path) -> None:
    assert not any(result(tmp_path, "")["breaches"].values())


@pytest.mark.parametrize("planted", ["a group lost", "a batch learned from twice", "a failure scored", *ONLY_OF_A_PART])
def test_a_planted_fault_is_in_the_result_and_what_shows_it_is_kept(tmp_path: Path, planted: str) -> None:
    _, promise, _ = ALL[planted]
    assert [name for name, texts in result(tmp_path, planted)["breaches"].items() if texts] == [promise]
    assert (tmp_path / "kept" / "rl" / "runs" / "chaos" / "lineage.jsonl").exists()
