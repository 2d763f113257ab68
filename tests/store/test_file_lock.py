import subprocess
import sys
from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.file_lock import exclusive_lock, wait_for_lock

HOLDER = """
import sys
from pathlib import Path
from hermes_rl.core.file_lock import wait_for_lock
with wait_for_lock(Path(sys.argv[1]), 1, "it"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_file_is_held_after_whoever_held_it(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDER, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(ConfigError, match=r"another process has held the draft for 0\.05 s"),
            wait_for_lock(lock, 0.05, "the draft"),
        ):
            pass
        holder.kill()
    with wait_for_lock(lock, 30, "the draft"):
        pass


def test_it_is_let_go_when_the_block_is_left_by_an_error(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with pytest.raises(RuntimeError), wait_for_lock(lock, 1, "it"):
        raise RuntimeError
    with exclusive_lock(lock, "?"):
        pass
