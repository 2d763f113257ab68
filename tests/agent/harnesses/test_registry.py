"""A ready-made agent is found by its name, and is told how to be had when it is not there."""

import json
import re
from pathlib import Path

import pytest

from hermes_rl.agent.harnesses.harness import Agent
from hermes_rl.agent.harnesses.installer import agents_home, installed_folder
from hermes_rl.agent.harnesses.registry import get_agent, load_agent
from hermes_rl.core.errors import ConfigError
from hermes_rl.extensions import AGENTS


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    return tmp_path


def test_an_unknown_agent_is_refused_with_those_there_are() -> None:
    known = "acp, aider, claude-code, codex, gemini-cli, hermes-agent, mini-swe-agent, opencode, openhands, qwen-code"
    with pytest.raises(ConfigError, match=rf"no agent is named 'claude': choose one of {known}"):
        load_agent("claude")


def test_an_agent_that_is_not_installed_says_the_line_to_type() -> None:
    with pytest.raises(ConfigError, match="hermes-rl agent install hermes-agent"):
        load_agent("hermes-agent")


def test_an_installed_agent_comes_with_its_folder() -> None:
    folder = agents_home() / get_agent("codex").folder_name
    folder.mkdir(parents=True)
    program = load_agent("codex")
    assert (program.folder, program.command) == (folder, get_agent("codex").command)


def test_agents_are_installed_beside_the_images(home: Path) -> None:
    assert agents_home() == home / "rl" / "agents"


@pytest.mark.parametrize(
    "agent", [get_agent(name) for name in AGENTS.builtin if name != "acp"], ids=lambda agent: agent.name
)
def test_every_package_is_pinned(agent: Agent) -> None:
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+( --hash=sha256:[0-9a-f]{64})+", package) for package in agent.pip)
    assert agent.pip


@pytest.mark.parametrize("name", ["claude-code", "gemini-cli", "opencode", "qwen-code"])
def test_every_package_of_npm_is_pinned_by_its_hash_and_no_line_names_an_address(name: str) -> None:
    agent = get_agent(name)
    packages = json.loads(agent.npm)["packages"]
    del packages[""]
    assert packages
    assert all(package["integrity"].startswith("sha512-") for package in packages.values())
    assert "://" not in agent.npm
    assert agent.version in {package["version"] for package in packages.values()}


def test_the_harness_of_the_agent_client_protocol_needs_no_installation() -> None:
    assert load_agent("acp").folder is None


def test_the_hermes_agent_is_the_one_on_the_index() -> None:
    assert "hermes-agent==0.19.0" in [package.split()[0] for package in get_agent("hermes-agent").pip]


def test_another_list_of_packages_is_another_folder() -> None:
    def agent(*packages: str, npm: str = "") -> Agent:
        return Agent("one", "1", "", "", "", "true", pip=packages, npm=npm)

    assert agent("a==1").folder_name == agent("a==1").folder_name
    assert agent("a==1").folder_name != agent("a==2").folder_name
    assert agent("a==1").folder_name != agent("a==1", npm="{}").folder_name
    assert installed_folder(agent("a==1")) is None
