"""The adapter where atroposlib is not installed."""

import subprocess
import sys

import pytest

from hermes_rl import ConfigError
from hermes_rl.environment.atropos_adapter.adapter import atropos_environment
from hermes_rl.environment.loading.loader import load_environment

COMMAND = [sys.executable, "-m", "hermes_rl.environment.atropos_adapter"]


def test_a_missing_extra_says_the_line_that_installs_it() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'hermes-rl\[atropos,tokens\]'"):
        atropos_environment(load_environment("terminal_test"))


@pytest.mark.parametrize(
    ("arguments", "said"), [([], "usage: "), (["terminal_test", "process"], "error: "), (["nobody"], "no environment")]
)
def test_the_command_says_what_is_wrong_in_a_line(arguments: list[str], said: str) -> None:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
