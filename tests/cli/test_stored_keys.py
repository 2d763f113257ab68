"""Stored keys reach every command and the author's code, and never a sandbox or a record."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.key_file import change_keys
from hermes_rl.core.keys import key_file
from tests.support.scripted_model import Calls, ScriptedModel, Text

SECRET = "sk-stored-canary-4711"
NAME = "OPENROUTER_API_KEY"
ENVIRONMENT = f"""
import os

from hermes_rl import APIServerConfig, HermesAgentBaseEnv, HermesAgentEnvConfig


class KeyEnv(HermesAgentBaseEnv):
    default_toolsets = ("terminal",)

    @classmethod
    def config_init(cls):
        assert os.environ["{NAME}"] == "{SECRET}"
        endpoint = APIServerConfig(model_name="scripted", health_check=False, api_key=os.environ["{NAME}"])
        return HermesAgentEnvConfig(total_steps=1, group_size=1, use_wandb=False), [endpoint]

    async def get_next_item(self):
        return {{"number": 1}}

    def format_prompt(self, item):
        return "show the environment"

    async def compute_reward(self, item, result, ctx):
        return 0.0 if "{SECRET}" in ctx.terminal("env; cat /proc/*/environ")["output"] else 1.0


if __name__ == "__main__":
    KeyEnv.cli()
"""


def shows_the_environment(request: dict[str, Any]) -> Calls | Text:
    if request["messages"][-1]["role"] == "tool":
        return Text("done")
    return Calls([("terminal", '{"command": "env; cat /proc/self/environ /proc/1/environ; cat .env ~/.env"}')])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(NAME, raising=False)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "key_env.py").write_text(ENVIRONMENT)
    return tmp_path / "project"


def store(where: str, project: Path) -> None:
    if where == "key file":
        change_keys(key_file(), NAME, SECRET)
        return
    file = project / ".env" if where == "project" else key_file().parents[1] / ".env"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"{NAME}={SECRET}\n")


async def run(project: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, *command],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("backend", ["bubblewrap", "local"])
@pytest.mark.parametrize(
    ("where", "command"),
    [
        ("project", ["-m", "hermes_rl", "process", "key_env.py"]),
        ("key file", ["key_env.py", "process"]),
        ("home", ["-m", "hermes_rl", "process", "key_env.py"]),
    ],
)
async def test_an_authors_code_finds_a_stored_key_and_a_sandbox_does_not(
    project: Path, where: str, command: list[str], backend: str
) -> None:
    store(where, project)
    async with ScriptedModel(shows_the_environment) as model:
        flags = ["--openai.base_url", model.base_url, "--env.terminal_backend", backend]
        done = await run(project, *command, *flags)
    assert done.returncode == 0, done.stderr
    assert "literal" not in done.stderr
    record = (project / "data" / "KeyEnv.jsonl").read_text()
    assert '"scores":[1.0]' in record.replace(" ", "")
    assert "PATH=" in record
    assert SECRET not in record + done.stdout + done.stderr


async def test_a_run_and_the_rl_tools_describe_an_environment_that_reads_a_stored_key(project: Path) -> None:
    store("project", project)
    done = await run(project, "-m", "hermes_rl.environment.config_introspection", "key_env.py")
    assert "description" in json.loads(done.stdout), done.stdout
    assert SECRET not in done.stdout + done.stderr


async def test_commands_that_report_keys_say_where_they_are_stored(project: Path) -> None:
    store("project", project)
    shown = await run(project, "-m", "hermes_rl", "config", "show")
    [line] = [line for line in shown.stdout.splitlines() if line.startswith(NAME)]
    assert line.split()[1:3] == ["…4711", ".env"]
    checked = await run(project, "-m", "hermes_rl", "doctor", "--json")
    assert "…4711 in .env" in checked.stdout
    assert SECRET not in shown.stdout + checked.stdout


async def test_a_variable_of_the_shell_is_kept(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store("project", project)
    monkeypatch.setitem(os.environ, NAME, "sk-of-the-shell")
    done = await run(project, "-m", "hermes_rl", "process", "key_env.py", "--openai.base_url", "http://127.0.0.1:9/v1")
    assert done.returncode != 0
    assert "AssertionError" in done.stderr
