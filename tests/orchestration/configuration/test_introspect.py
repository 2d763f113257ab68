"""The process that tells an environment's configuration: what the environment does there never reaches the caller."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.configuration import introspect
from hermes_rl.orchestration.configuration.introspect import describe
from tests.orchestration.configuration.environments import PLAIN, written


def test_the_process_tells_what_config_init_gives(tmp_path: Path) -> None:
    description = describe(written(tmp_path).reference, {"env": {"group_size": 6}})
    assert (description.env["level"].default, description.env["group_size"].value) == (5, 6)


def test_whatever_the_environment_prints_the_answer_is_whole(tmp_path: Path) -> None:
    noisy = f'import os\nprint("{{")\nos.write(1, b"noise")\n{PLAIN}\nos.system("echo more noise")\n'
    assert describe(written(tmp_path, noisy).reference, {}).name == "counting"


def test_the_environments_code_runs_in_another_process(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    text = f"import os, pathlib\npathlib.Path({str(marker)!r}).write_text(str(os.getpid()))\n{PLAIN}"
    describe(written(tmp_path, text).reference, {})
    assert int(marker.read_text()) != os.getpid()


def test_an_environment_that_ends_the_process_is_told_with_what_it_said(tmp_path: Path) -> None:
    text = 'import os, sys\nprint("no licence", file=sys.stderr, flush=True)\nos._exit(3)\n'
    with pytest.raises(ConfigError, match=r"exit status 3 .*hermes-rl validate(.|\n)*no licence"):
        describe(written(tmp_path, text).reference, {})


def test_an_environment_that_hangs_is_ended_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "child"
    has_ended = introspect._has_ended

    def in_haste(process: subprocess.Popen[bytes]) -> bool:
        if marker.exists() and marker.read_text():
            monkeypatch.setattr(introspect, "DEADLINE", 0.0)
        return has_ended(process)

    monkeypatch.setattr(introspect, "_has_ended", in_haste)
    text = (
        "import pathlib, subprocess, time\n"
        f"child = subprocess.Popen(['sleep', '600'])\npathlib.Path({str(marker)!r}).write_text(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    with pytest.raises(ConfigError, match=r"within 0 s; move slow work .* to setup\(\)"):
        describe(written(tmp_path, text).reference, {})
    deadline = time.monotonic() + 30
    while _runs(int(marker.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(int(marker.read_text()))


def test_a_child_that_is_left_behind_holds_nobody_up(tmp_path: Path) -> None:
    text = f"import subprocess\nsubprocess.Popen(['sleep', '600'])\n{PLAIN}"
    assert describe(written(tmp_path, text).reference, {}).name == "counting"


def test_a_broken_file_is_told_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ZeroDivisionError.*fix the file, then select it again"):
        describe(written(tmp_path, "1 / 0\n").reference, {})


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
