"""`harbor:FOLDER` where a command takes an environment."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from hermes_rl.cli.environment_command import split_source
from hermes_rl.cli.validate import validate


@pytest.mark.parametrize(
    ("typed", "command", "expected"),
    [
        ("harbor:a/b", "process", ("harbor", ["--env.dataset_name", "a/b"])),
        ("harbor:a/b", "evaluate", ("harbor", ["--env.dataset_name", "a/b", "--env.dataset_split", "test"])),
        ("harbor:HarborEnv", "process", ("harbor:HarborEnv", [])),
        ("my_env.py:MyEnv", "process", ("my_env.py:MyEnv", [])),
    ],
)
def test_a_source_becomes_options(typed: str, command: str, expected: object) -> None:
    assert split_source(typed, command) == expected


def test_validate_takes_a_folder_of_tasks(tmp_path: Path) -> None:
    task = tmp_path / "tasks" / "one"
    for path, text in {
        "task.toml": "[metadata]\nruns_without_image = true\n[environment]\ngpus = 1\n",
        "instruction.md": "Write 42 into answer.txt.",
        "environment/Dockerfile": "FROM debian:12-slim\nWORKDIR /app\n",
        "tests/test.sh": "true",
    }.items():
        (task / path).parent.mkdir(parents=True, exist_ok=True)
        (task / path).write_text(text)
    result = CliRunner().invoke(validate, [f"harbor:{tmp_path}/tasks", "--env.terminal_backend", "bubblewrap"])
    assert "one: [environment] gpus" in f"{result.output}{result.exception}"
