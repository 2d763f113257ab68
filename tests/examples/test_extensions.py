"""Each file of examples/extensions is used in a real run, named by its path, without a change to the package."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.extensions import KINDS, OBJECTIVES, PARSERS, SANDBOX_BACKENDS, load
from tests.support.scripted_model import ScriptedModel, Text

FOLDER = Path(__file__).parents[2] / "examples" / "extensions"
ENVIRONMENT = """
from hermes_rl import HermesAgentBaseEnv


class DiceEnv(HermesAgentBaseEnv):
    name = "dice"

    def train_items(self):
        return [{"id": "one"}]

    def format_prompt(self, item):
        return "Roll a die, then say what you rolled."

    async def compute_reward(self, item, result, ctx):
        text = ctx.read_file("answer.txt") if self.config.agent_command else result.final_response
        return float("rolled" in str(text))
"""


async def generate(folder: Path, model: ScriptedModel, *options: str) -> list[dict[str, Any]]:
    """The groups of `hermes-rl process`, run in another folder than the examples."""
    file = folder / "dice_env.py"
    file.write_text(ENVIRONMENT)
    words = (
        "process",
        str(file),
        "--openai.base_url",
        model.base_url,
        "--env.total_steps",
        "1",
        "--env.group_size",
        "2",
    )
    paths = ("--env.data_path_to_save_groups", str(folder / "groups.jsonl"))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hermes_rl", *words, *paths, *options),
        cwd=folder,
        env={**os.environ, "WANDB_MODE": "disabled"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return [json.loads(line) for line in (folder / "groups.jsonl").read_text().splitlines()]


def answer(body: dict[str, Any]) -> Text:
    results = [message for message in body["messages"] if message["role"] == "tool"]
    return Text("I rolled it.") if results else Text('<call name="roll_dice">{"sides": 20}</call>')


async def test_backend_parser_toolset_and_sink_of_files_make_a_group(tmp_path: Path) -> None:
    async with ScriptedModel(answer) as model:
        groups = await generate(
            tmp_path,
            model,
            *("--env.terminal_backend", f"{FOLDER / 'scratch_backend.py'}:ScratchBackend"),
            *("--env.tool_call_parser", f"{FOLDER / 'xml_parser.py'}:XmlParser"),
            *("--env.enabled_toolsets", json.dumps([f"{FOLDER / 'dice_tools.py'}:DICE", "terminal"])),
            *("--env.metric_sinks", json.dumps([f"{FOLDER / 'csv_sink.py'}:CsvSink"])),
        )
    assert [rollout["score"] for group in groups for rollout in group["rollouts"]] == [1.0, 1.0]
    assert "train/" in next(tmp_path.rglob("metrics.csv")).read_text()


async def test_an_agent_of_a_file_runs_in_the_sandbox(tmp_path: Path) -> None:
    async with ScriptedModel(lambda _: Text("rolled 4")) as model:
        groups = await generate(tmp_path, model, "--env.agent_command", f"agent:{FOLDER / 'curl_agent.py'}:AGENT")
    assert [rollout["score"] for group in groups for rollout in group["rollouts"]] == [1.0, 1.0]


def test_every_example_is_short() -> None:
    assert all(len(file.read_text().splitlines()) < 80 for file in FOLDER.glob("*.py"))


def test_every_built_in_part_can_be_loaded() -> None:
    for kind in KINDS:
        for name in kind.builtin:
            if name not in kind.extras:
                assert kind.resolve(name) is not None


def test_a_file_is_loaded_once(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Mine: ...\n")
    assert load(f"{tmp_path}/mine.py:Mine") is load(f"{tmp_path}/mine.py:Mine")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", r"no objective is named 'nothing': choose one of .*importance_sampling.* or module:Name"),
        ("no_such_module:Thing", r"the objective no_such_module:Thing cannot be loaded: ModuleNotFoundError"),
        ("json:Thing", r"json has no 'Thing'"),
        ("nowhere.py:Thing", r"there is no file .*nowhere\.py"),
    ],
)
def test_what_cannot_be_found_is_refused_with_the_reason(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OBJECTIVES.resolve(name)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    monkeypatch.delitem(sys.modules, "hermes_rl.sandbox.backends.ssh", raising=False)
    monkeypatch.delitem(sys.modules, "hermes_rl.sandbox.backends.ssh_connections", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'hermes-rl\[ssh\]'"):
        SANDBOX_BACKENDS.resolve("ssh")


def test_an_installed_entry_point_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "mine-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[hermes_rl.parsers]\nmine = mine_parser:MineParser\n")
    (tmp_path / "mine_parser.py").write_text("class MineParser: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert PARSERS.resolve("mine").__name__ == "MineParser"
    assert "mine" in PARSERS.names()
    assert [found.origin for found in PARSERS.found() if found.name == "mine"] == ["mine 1.2"]
