"""How the ready-made agents are started: what their command writes, and how the prompt reaches them."""

import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from hermes_rl.agent.harnesses.registry import get_agent

PROMPT = "--help 'me'\n\"$HOME\" `date` {prompt}"
# Stands for the agent's own program: tells its words, and what it is fed.
TELLS = '#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done\nprintf "\\0"\ncat\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What would be at /agent."""
    for place in ("bin/python", "lib/python3.11/site-packages/codex_cli_bin/bin/codex"):
        program = tmp_path / "agent" / place
        program.parent.mkdir(parents=True)
        program.write_text(TELLS)
        program.chmod(0o755)
    return tmp_path / "agent"


def start(name: str, folder: Path, **env: str) -> tuple[list[str], str]:
    """The words and the input that an agent's program gets."""
    (folder.parent / "prompt.txt").write_text(PROMPT)
    given = {
        **get_agent(name).env,
        "OPENAI_BASE_URL": "http://127.0.0.1:1/v1",
        "OPENAI_API_KEY": "key-of-the-rollout",
        "PROMPT_FILE": str(folder.parent / "prompt.txt"),
        "HERMES_HOME": str(folder.parent / "home"),
        "CODEX_HOME": str(folder.parent / "home"),
        "PATH": os.environ["PATH"],
        **env,
    }
    command = get_agent(name).command.replace("/agent/", f"{folder}/")
    said = subprocess.run(
        ["bash", "-c", command], env=given, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    ).stdout
    words, _, fed = said.partition("\0\0")
    return words.split("\0"), fed


def hermes_config(folder: Path) -> Any:
    return yaml.safe_load((folder.parent / "home" / "config.yaml").read_text())


def test_hermes_gets_the_prompt_as_one_word_whatever_is_in_it(folder: Path) -> None:
    words, _ = start("hermes-agent", folder)
    assert words == [
        f"{folder}/bin/hermes",
        "--toolsets",
        "terminal,file,code_execution,delegation,todo",
        f"--oneshot={PROMPT}",
    ]


@pytest.mark.parametrize(
    ("given", "context"), [("8192", 8192), ("63990", 63990), ("131072", 131072), ("", 65536), ("unknown", 65536)]
)
def test_hermes_compacts_by_the_models_real_context(folder: Path, given: str, context: int) -> None:
    start("hermes-agent", folder, CONTEXT_TOKENS=given)
    config = hermes_config(folder)
    window, kept = config["model"]["context_length"], config["model"]["max_tokens"]
    assert window - kept == context
    # Below the first it refuses to start; below the second it would cut answers.
    assert window >= 64_000
    assert kept >= 32_768
    assert config["auxiliary"]["compression"]["context_length"] == window


def test_hermes_keeps_less_of_a_small_context(folder: Path) -> None:
    start("hermes-agent", folder, CONTEXT_TOKENS="16000")
    config = hermes_config(folder)
    assert (config["compression"]["protect_last_n"], config["tool_output"]["max_bytes"]) == (5, 12_500)


def test_no_key_is_written_to_a_file(folder: Path) -> None:
    start("hermes-agent", folder)
    start("codex", folder)
    assert hermes_config(folder)["model"]["api_key"] == "${OPENAI_API_KEY}"
    written = [path.read_text() for path in (folder.parent / "home").iterdir()]
    assert not any("key-of-the-rollout" in text for text in written)


def test_a_configuration_of_your_own_stays(folder: Path) -> None:
    home = folder.parent / "home"
    home.mkdir()
    for name in ("config.yaml", "config.toml"):
        (home / name).write_text("mine = 1")
    start("hermes-agent", folder)
    start("codex", folder)
    assert [path.read_text() for path in home.iterdir()] == ["mine = 1", "mine = 1"]


def test_codex_reads_the_prompt_from_its_input(folder: Path) -> None:
    words, fed = start("codex", folder, CODEX_MODEL="policy")
    assert fed == PROMPT
    assert words[-3:] == ["--model", "policy", "-"]


def test_codex_asks_the_gateway_in_the_dialect_of_responses(folder: Path) -> None:
    start("codex", folder, CONTEXT_TOKENS="8192")
    config = tomllib.loads((folder.parent / "home" / "config.toml").read_text())
    provider = config["model_providers"][config["model_provider"]]
    assert (provider["base_url"], provider["wire_api"]) == ("http://127.0.0.1:1/v1", "responses")
    assert config["model_context_window"] == 8192
