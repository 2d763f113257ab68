"""Completion in a real bash, set up with the line of docs/start.md."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "start.md"


def completed(words: str, position: int) -> list[str]:
    """What bash offers at the position of a line."""
    setup = next(line for line in PAGE.read_text().splitlines() if "bash_source" in line and line.startswith("eval"))
    script = f"""{setup}
complete -p hermes-rl >/dev/null || exit 1
COMP_WORDS=({words}); COMP_CWORD={position}
_hermes_rl_completion hermes-rl
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["bash", "--norc", "-c", script]
    shown = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True)
    return shown.stdout.split()


@pytest.mark.parametrize(
    ("words", "position", "offered"),
    [("hermes-rl val", 1, "validate"), ("hermes-rl run res", 2, "resume"), ("hermes-rl compare --js", 2, "--json")],
)
def test_bash_completes_commands_and_options(words: str, position: int, offered: str) -> None:
    assert offered in completed(words, position)
