"""docs/walkthrough.md as a new user would go it, on the small model: from init to a second reward."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_rl.store.records import read_groups
from tests.engines.conftest import Endpoint

pytestmark = pytest.mark.long

PAGE = Path(__file__).parents[2] / "docs" / "walkthrough.md"
PROGRAM = f"{sys.executable} -m hermes_rl"


def command(number: int, endpoint: Endpoint | None = None) -> str:
    """The n-th command of the page, on this endpoint."""
    line: str = re.findall(r"^\$ (hermes-rl .*?[^\\])$", PAGE.read_text(), re.DOTALL | re.MULTILINE)[number]
    line = line.replace("hermes-rl", PROGRAM, 1).replace("\\\n", " ")
    return line.replace("URL", endpoint.base_url).replace("MODEL", endpoint.model_name) if endpoint else line


def run(line: str, folder: Path) -> str:
    done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def new_reward(source: str) -> str:
    """The file with the page's second reward in it."""
    page = PAGE.read_text()
    listed, old, new = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert listed == source
    assert old in source
    return source.replace(old, new)


def test_an_author_goes_from_nothing_to_a_second_reward(small_model: Endpoint, tmp_path: Path) -> None:
    run(command(0), tmp_path)
    assert "no problems found" in run(command(1), tmp_path)
    run(command(2, small_model), tmp_path)
    groups = list(read_groups(tmp_path / "data" / "word_count.jsonl"))
    assert [len(group.scored) for group in groups] == [4, 4, 4]

    same = json.loads(run(f"{command(3)} --json 2>/dev/null", tmp_path))
    assert same["rollouts"]["same"] == 12

    file = tmp_path / "word_count_env.py"
    file.write_text(new_reward(file.read_text()))
    moved = json.loads(run(f"{command(3)} --overwrite --json 2>/dev/null", tmp_path))
    assert moved["rollouts"]["same"] + moved["rollouts"]["up"] == 12
    assert 'the cheat "says many guesses" scores' in run(command(4), tmp_path)
    assert "── reward" in run(command(5), tmp_path)
