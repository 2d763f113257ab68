"""`hermes-rl env` as a person and as a program meet it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_command import hermes_rl
from tests.orchestration.discovery.writing import written

BUNDLED = "append_log gsm8k harbor swe terminal_test terminal_words web_research".split()
MINE = '''from hermes_rl import HermesAgentBaseEnv
class Mine(HermesAgentBaseEnv):
    """Count things."""
    METHODS
    @classmethod
    def config_init(cls):
        return cls.env_config_cls(group_size=3), []
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own folder, with an environment and a broken file."""
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    monkeypatch.delenv("HERMES_RL_ENVIRONMENTS", raising=False)
    return written(tmp_path / "rl" / "environments", {"mine_env.py": MINE, "bad_env.py": "x = 1\nx ="})


def test_all_environments_are_listed_for_programs(folder: Path) -> None:
    told = json.loads(hermes_rl("env", "list", "--json").stdout)
    assert [row["name"] for row in told["environments"]] == [*BUNDLED, "mine"]
    mine = told["environments"][-1]
    assert mine["id"].startswith("mine@")
    assert (mine["kind"], mine["source"], mine["description"]) == ("hermes", "user", "Count things.")
    assert told["broken"] == [
        {"file_path": str(folder / "bad_env.py"), "line": 2, "why": "syntax error: invalid syntax"}
    ]


def test_all_environments_are_listed_for_people(folder: Path) -> None:
    lines = hermes_rl("env", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines[:8]] == [*BUNDLED, "mine"]
    assert lines[7].endswith("[user] Count things.")
    assert lines[-1] == f"  {folder / 'bad_env.py'}:2: syntax error: invalid syntax"


def test_an_environment_is_shown_with_the_settings_it_chose() -> None:
    done = hermes_rl("env", "show", "mine")
    assert done.returncode == 0, done.stderr
    assert "group_size = 3" in done.stdout
    assert "max_agent_turns" not in done.stdout


def test_an_environment_is_shown_for_programs() -> None:
    told: dict[str, Any] = json.loads(hermes_rl("env", "show", "mine", "--json").stdout)
    assert told["class_name"] == "Mine"
    assert told["config"]["env"]["group_size"]["value"] == 3


def test_an_environment_that_cannot_tell_its_settings_is_shown_all_the_same(folder: Path) -> None:
    (folder / "mine_env.py").write_text(f"{(folder / 'mine_env.py').read_text()}raise ValueError('no luck')\n")
    done = hermes_rl("env", "show", "mine")
    assert done.returncode == 1
    assert "Count things." in done.stdout
    assert "no luck" in done.stderr


def test_an_unknown_environment_is_told_with_the_nearest() -> None:
    done = hermes_rl("env", "show", "gsm9k")
    assert done.returncode == 2
    assert "did you mean 'gsm8k'?" in done.stderr


def test_the_other_verbs_know_the_listed_names() -> None:
    done = hermes_rl("process", "mine", "--help")
    assert done.returncode == 0, done.stderr
    assert "--env.group_size" in done.stdout


def test_an_id_of_another_version_is_told() -> None:
    done = hermes_rl("process", "mine@00000000")
    assert done.returncode == 2
    assert "'mine' has no version '00000000'" in done.stderr
