"""The environments that the guides show, tried as a reader would: `hermes-rl validate FILE`."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def example(page: str, name: str) -> str:
    """The block of the page that defines the class for hermes-rl."""
    blocks: list[str] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    return next(block for block in blocks if f"class {name}(HermesAgentBaseEnv)" in block)


def test_the_environment_of_the_readme_is_the_one_that_init_writes() -> None:
    template = ROOT / "src" / "hermes_rl" / "environment" / "template" / "word_count_env.py.txt"
    assert example("../README.md", "WordCountEnv") == template.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "name", "oracle"),
    [
        ("authors.md", "SumsEnv", True),
        ("migrating.md", "MyEnv", False),
        ("migrating.md", "SumEnv", True),
        ("migrating.md", "AdditionEnv", True),
    ],
)
def test_the_environment_of_a_guide_is_valid(page: str, name: str, oracle: bool, tmp_path: Path) -> None:
    file = tmp_path / "shown_env.py"
    file.write_text(example(page, name))
    words = ["validate", str(file), "--items", "2", "--search-seconds", "1", "--json"]
    command = [sys.executable, "-m", "hermes_rl", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=220, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    agents = {agent["name"]: agent for agent in report["agents"]}
    assert ("oracle" in agents) is oracle
