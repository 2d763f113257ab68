"""`hermes-rl agent`: what there is, what is installed, and how to have it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hermes_rl.agent.harnesses.installer import agents_home
from hermes_rl.agent.harnesses.registry import get_agent
from hermes_rl.cli.agent import agent
from hermes_rl.core.errors import ConfigError
from hermes_rl.extensions import AGENTS


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))


def test_the_list_says_which_agents_are_installed_and_where() -> None:
    folder = agents_home() / get_agent("codex").folder_name
    folder.mkdir(parents=True)
    listed = json.loads(CliRunner().invoke(agent, ["list", "--json"]).output)
    assert {one["name"]: one["folder"] for one in listed} == {**dict.fromkeys(AGENTS.builtin), "codex": str(folder)}
    shown = CliRunner().invoke(agent, ["list"]).output
    assert f"installed: {folder}" in shown
    assert shown.count("not installed") == len(listed) - 2
    assert shown.count("nothing to install") == 1


def test_installing_what_is_there_says_where() -> None:
    folder = agents_home() / get_agent("codex").folder_name
    folder.mkdir(parents=True)
    assert CliRunner().invoke(agent, ["install", "codex"]).output == f"{folder}\n"


def test_an_agent_without_packages_is_told_to_need_none() -> None:
    assert CliRunner().invoke(agent, ["install", "acp"]).output == "acp has no packages to install\n"


def test_installing_what_nobody_knows_is_an_error() -> None:
    assert isinstance(CliRunner().invoke(agent, ["install", "nobody"]).exception, ConfigError)
