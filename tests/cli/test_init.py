"""`hermes-rl init`: what it writes works at once, is short enough to be read, and replaces nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.cli.init import KINDS, parse_environment_name, render_template
from hermes_rl.core.errors import ConfigError

NO_TERMINAL: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 250}


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], check=False, cwd=cwd, **NO_TERMINAL)


@pytest.mark.parametrize("name", ["word_count", "word-count", "word_count_env", "word_count_env.py"])
def test_the_ending_of_the_file_is_no_part_of_the_name(name: str) -> None:
    assert parse_environment_name(name) == "word_count"


@pytest.mark.parametrize("name", ["2fast", "my env", "class", "über", "../up", "MyEnv", "", "_env"])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="use lower-case words joined by _"):
        parse_environment_name(name)


def test_two_files_are_written_and_the_next_steps_told(tmp_path: Path) -> None:
    done = run("hermes_rl", "init", "word_count", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"word_count_env.py", "test_word_count_env.py"}
    for step in ("validate", "process", "evaluate"):
        assert f"hermes-rl {step} word_count_env.py" in done.stdout


def test_files_and_class_have_the_name_that_was_given() -> None:
    files = render_template("tidy_desk")
    assert list(files) == ["tidy_desk_env.py", "test_tidy_desk_env.py"]
    assert "class TidyDeskEnv(HermesAgentBaseEnv)" in files["tidy_desk_env.py"]
    assert "from tidy_desk_env import TidyDeskEnv" in files["test_tidy_desk_env.py"]
    assert "word_count" not in "".join(files.values()).lower()


def test_environment_and_test_are_under_forty_lines() -> None:
    assert sum(len(text.splitlines()) for text in render_template("word_count").values()) < 40


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_the_example_is_left_in_the_name(kind: str) -> None:
    written = "".join(render_template("tidy_desk", kind).values())
    assert KINDS[kind].name not in written.lower()
    assert "class TidyDeskEnv(" in written


def test_a_kind_says_what_it_needs(tmp_path: Path) -> None:
    done = run("hermes_rl", "init", "mine", "--kind", "judge", cwd=tmp_path)
    assert "validate, process and evaluate also need --env.judge_url URL --env.judge_model MODEL" in done.stdout


def test_a_kind_and_traces_exclude_each_other(tmp_path: Path) -> None:
    (tmp_path / "traces.jsonl").write_text("")
    done = run("hermes_rl", "init", "mine", "--kind", "game", "--from-traces", "traces.jsonl", cwd=tmp_path)
    assert (done.returncode, "exclude each other; pass one of them" in done.stderr) == (2, True)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "test_mine_env.py").write_text("precious")
    done = run("hermes_rl", "init", "mine", cwd=tmp_path)
    assert (done.returncode, [path.name for path in tmp_path.iterdir()]) == (2, ["test_mine_env.py"])
    assert "test_mine_env.py already exists" in done.stderr
    assert (tmp_path / "test_mine_env.py").read_text() == "precious"


def test_another_folder_is_made(tmp_path: Path) -> None:
    done = run("hermes_rl", "init", "mine", "--dir", "my envs", cwd=tmp_path)
    assert (tmp_path / "my envs" / "mine_env.py").exists()
    assert "hermes-rl validate 'my envs/mine_env.py'" in done.stdout


def test_what_was_written_validates(tmp_path: Path) -> None:
    run("hermes_rl", "init", "mine", cwd=tmp_path)
    done = run("hermes_rl", "validate", "mine_env.py", "--items", "1", "--search-seconds", "1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    means = {agent["name"]: agent["mean"] for agent in report["agents"]}
    assert report["findings"] == []
    assert means.pop("oracle") == 1.0
    assert set(means.values()) == {0.0}


def write(folder: Path, kind: str) -> None:
    for place, text in render_template("mine", kind).items():
        (folder / place).write_text(text)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_written_is_tidy(kind: str, tmp_path: Path) -> None:
    write(tmp_path, kind)
    rules = ["--isolated", "--line-length", "120"]
    ignored = "ARG002,COM812,CPY,D1,D203,D213,D413,D417,INP"
    checked = run("ruff", "check", *rules, "--select", "ALL", "--ignore", ignored, cwd=tmp_path)
    formatted = run("ruff", "format", "--check", *rules, cwd=tmp_path)
    assert (checked.returncode, formatted.returncode) == (0, 0), checked.stdout + formatted.stdout


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_its_types_hold_and_its_test_passes(kind: str, tmp_path: Path) -> None:
    write(tmp_path, kind)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:asyncio -p no:cacheprovider\n")
    typed = run("mypy", "--strict", "--cache-dir", os.devnull, ".", cwd=tmp_path)
    assert typed.returncode == 0, typed.stdout
    tested = run("pytest", "-q", cwd=tmp_path)
    assert "1 passed" in tested.stdout, tested.stdout + tested.stderr
