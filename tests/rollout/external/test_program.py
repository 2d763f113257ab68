"""Marks become words and variables; what the program needs is on its machine."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hermes_rl import ConfigError, HermesAgentEnvConfig, SandboxSpec
from hermes_rl.agent.harnesses.harness import packages_agent
from hermes_rl.agent.harnesses.installer import agents_home
from hermes_rl.agent.harnesses.registry import get_agent
from hermes_rl.core.errors import EnvironmentCodeError
from hermes_rl.rollout.external import program as program_module
from hermes_rl.rollout.external.program import Placeholders, Program, install_packages, prompt_text, with_agent

MARKS = Placeholders(
    origin="http://127.0.0.1:5",
    base_url="http://127.0.0.1:5/v1",
    key="sk-rl-1",
    model="tiny",
    context_tokens="4096",
    prompt="it's $HOME",
    prompt_file="/tmp/p",
    messages_file="/tmp/m",
)


def program(command: Any, **env: str) -> Program:
    return Program.from_config(HermesAgentEnvConfig(agent_command=command, agent_env=env))


@pytest.mark.parametrize("command", ["run --say {prompt}", ["run", "--say", "{prompt}"]])
def test_a_mark_is_one_word_whatever_it_holds(command: Any) -> None:
    assert shlex.split(program(command).shell_command(MARKS)) == ["run", "--say", "it's $HOME"]


def test_a_mark_inside_a_word_stays_inside_it() -> None:
    assert program(["--url={base_url}", "x"]).shell_command(MARKS) == "--url=http://127.0.0.1:5/v1 x"


def test_other_braces_and_variables_of_the_shell_are_left_alone() -> None:
    command = "for f in {a,b}; do echo ${model} ${key} {other} {}; done"
    assert program(command).shell_command(MARKS) == command


def test_the_official_clients_find_the_gateway_by_themselves() -> None:
    assert program("run").environment_variables(MARKS) == {
        "OPENAI_BASE_URL": "http://127.0.0.1:5/v1",
        "OPENAI_API_BASE": "http://127.0.0.1:5/v1",
        "OPENAI_API_KEY": "sk-rl-1",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:5",
        "ANTHROPIC_API_KEY": "sk-rl-1",
        "GOOGLE_GEMINI_BASE_URL": "http://127.0.0.1:5",
        "GEMINI_API_KEY": "sk-rl-1",
    }


def test_variables_have_marks_too_and_go_over_the_usual_ones() -> None:
    variables = program("run", MODEL="openai/{model}", OPENAI_API_KEY="none").environment_variables(MARKS)
    assert (variables["MODEL"], variables["OPENAI_API_KEY"]) == ("openai/tiny", "none")


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=200))
def test_any_prompt_is_one_word(prompt: str) -> None:
    marks = Placeholders("", "", "", "", "", prompt, "", "")
    assert shlex.split(program("run {prompt} end").shell_command(marks)) == ["run", prompt, "end"]


def test_a_prompt_too_long_for_an_argument_says_what_to_do() -> None:
    marks = Placeholders("", "", "", "", "", "x" * 200_000, "/tmp/p", "")
    with pytest.raises(EnvironmentCodeError, match="prompt_file"):
        program("run {prompt}").shell_command(marks)
    assert program("run {prompt_file}").shell_command(marks) == "run /tmp/p"


def test_the_prompt_is_what_the_system_says_and_the_last_thing_the_user_says() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "an example"},
        {"role": "assistant", "content": "its answer"},
        {"role": "user", "content": [{"type": "text", "text": "the task"}]},
    ]
    assert prompt_text(messages) == "Be brief.\n\nthe task"


def test_setup_and_files_of_the_agent_come_after_those_of_the_item(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text("")
    config = HermesAgentEnvConfig(agent_command="run", agent_setup="install it", agent_files={"agent.py": str(script)})
    spec = with_agent(SandboxSpec(setup="prepare", files={"data": b""}), config)
    assert (spec.setup, dict(spec.files)) == ("prepare\ninstall it", {"data": b"", "agent.py": script})


def test_the_machine_of_our_loop_is_the_items_own() -> None:
    spec = SandboxSpec(setup="prepare")
    assert with_agent(spec, HermesAgentEnvConfig()) is spec


def test_a_file_that_is_not_there_is_told_before_the_first_rollout() -> None:
    config = HermesAgentEnvConfig(agent_command="run", agent_files={"agent.py": "/nowhere/agent.py"})
    with pytest.raises(ConfigError, match=r"/nowhere/agent\.py"):
        with_agent(SandboxSpec(), config)


def test_a_ready_made_agent_that_nobody_knows_is_told() -> None:
    with pytest.raises(ConfigError, match="no-such"):
        program("agent:no-such")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folders of `sdk` and of the packages `a` and `b`, as if they were installed."""
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    for agent in (get_agent("sdk"), packages_agent(["a", "b"])):
        (agents_home() / agent.folder_name).mkdir(parents=True)
    return agents_home()


@pytest.mark.parametrize(
    "command", ["agent:sdk --say {prompt} x", ["agent:sdk", "--say", "{prompt}", "x"]], ids=["text", "list"]
)
def test_a_ready_made_agent_of_ones_own_takes_arguments(command: Any, installed: Path) -> None:
    text = program(command).shell_command(MARKS)
    assert text == get_agent("sdk").command + " --say 'it'\"'\"'s $HOME' x"
    assert program("agent:sdk").shell_command(MARKS) == get_agent("sdk").command


def test_arguments_of_an_agent_that_takes_none_are_refused(installed: Path) -> None:
    (agents_home() / get_agent("codex").folder_name).mkdir()
    with pytest.raises(ConfigError, match="agent:codex takes no arguments, got '--fast'"):
        program("agent:codex --fast")


def test_packages_are_mounted_and_their_python_comes_first(installed: Path) -> None:
    config = HermesAgentEnvConfig(agent_command=["python3", "a.py", "{prompt}"], agent_packages=["b", "a"])
    command = Program.from_config(config).shell_command(MARKS)
    assert command == "export PATH=/agent/bin:$PATH; python3 a.py 'it'\"'\"'s $HOME'"
    folder = installed / packages_agent(["a", "b"]).folder_name
    assert dict(with_agent(SandboxSpec(), config).folders) == {"/agent": folder}


def test_packages_beside_a_ready_made_agent_are_refused(installed: Path) -> None:
    with pytest.raises(ConfigError, match="agent:sdk has its own packages"):
        Program.from_config(HermesAgentEnvConfig(agent_command="agent:sdk", agent_packages=["a"]))


def test_packages_bring_an_agent_of_the_agent_client_protocol(installed: Path) -> None:
    config = HermesAgentEnvConfig(agent_command="agent:acp my-agent {model}", agent_packages=["b", "a"])
    command = Program.from_config(config).shell_command(MARKS)
    assert command.startswith("export PATH=/agent/bin:$PATH; exec python3 -I -c \"$(cat <<'END_OF_CLIENT'\n")
    assert command.endswith('\nEND_OF_CLIENT\n)" my-agent tiny')
    assert Program.from_config(config).folder == installed / packages_agent(["a", "b"]).folder_name


async def test_packages_are_installed_once(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    monkeypatch.setattr(program_module, "install", done.append)
    for packages in (["a", "b"], ["c"]):
        await install_packages(HermesAgentEnvConfig(agent_command="run", agent_packages=packages))
    assert [agent.pip for agent in done] == [("c",)]


def test_settings_of_a_program_without_one_are_refused() -> None:
    with pytest.raises(ValidationError, match="agent_command"):
        HermesAgentEnvConfig(agent_setup="install it")
