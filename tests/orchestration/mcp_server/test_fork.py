"""`rl_fork` as a client of the MCP server meets it: records, a model behind a socket, and refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from hermes_rl.orchestration.discovery.allowed_files import AllowedFiles
from hermes_rl.orchestration.mcp_server.server import rl_server
from hermes_rl.orchestration.rl_tools.dispatch import MCP_TOOLS, RL_TOOLS
from hermes_rl.orchestration.rl_tools.toolset import RL
from hermes_rl.orchestration.run_paths import runs_home
from hermes_rl.rollout.generate import generate_groups
from hermes_rl.store.records import read_groups
from tests.support.environments import FileEnv, opened
from tests.support.rl_mcp import said
from tests.support.scripted_model import Calls, ScriptedModel, Text

# As tests.support.environments.FileEnv, which the process of a fork cannot import.
ENVIRONMENT = """
from hermes_rl import HermesAgentBaseEnv

class Files(HermesAgentBaseEnv):
    default_toolsets = ("terminal", "file")

    def train_items(self):
        return [{"number": 1}]

    def format_prompt(self, item):
        return f"write {item['number']}"

    async def compute_reward(self, item, result, ctx):
        return float(ctx.terminal("cat answer")["output"].strip() == str(item["number"]))
"""


def client(allowed: AllowedFiles | None = None) -> Client:
    return Client(rl_server(lambda _: "mcp-test", allowed_files=allowed))


def endpoint(model: ScriptedModel) -> dict[str, str]:
    return {"model": "scripted", "base_url": model.base_url}


def writes(number: str) -> Calls:
    return Calls([("terminal", json.dumps({"command": f"echo {number} > answer"}))])


def wrong_then_stops(request: dict[str, Any]) -> Text | Calls:
    done = any(message["role"] == "tool" for message in request["messages"])
    return Text("done") if done else writes("wrong")


@pytest.fixture
async def records(tmp_path: Path) -> Path:
    """One rollout that wrote the wrong number."""
    path = tmp_path / "groups.jsonl"
    async with ScriptedModel(wrong_then_stops) as model, opened(FileEnv, model, total_steps=1, group_size=1) as env:
        await generate_groups(env, path)
    (tmp_path / "files_env.py").write_text(ENVIRONMENT)
    return path


async def test_a_client_continues_a_rollout_with_another_model_and_an_edited_result(records: Path) -> None:
    requests: list[dict[str, Any]] = []

    def answer(request: dict[str, Any]) -> Text | Calls:
        requests.append(request)
        number = request["messages"][0]["content"].split()[-1]
        return Text("done") if len(request["messages"]) > 3 else writes(number)

    async with ScriptedModel(answer) as model, client() as connected:
        answered = await said(
            connected,
            "rl_fork",
            file=str(records),
            turn=2,
            model=endpoint(model),
            count=2,
            edit="-the number is wrong",
            environment=str(records.parent / "files_env.py"),
        )
    assert answered["recorded_score"] == 0.0
    assert answered["scores"] == [1.0, 1.0] and answered["failures"] == []
    first = [request["messages"][-1]["content"] for request in requests if len(request["messages"]) == 3]
    assert first == ["-the number is wrong"] * 2
    (made,) = read_groups(Path(answered["path"]))
    assert made.rollouts[0].metadata["fork"]["edit"] == "-the number is wrong"


async def test_a_difference_is_the_error_and_no_model_is_asked(records: Path) -> None:
    row = json.loads(records.read_text().splitlines()[0])
    row["rollouts"][0]["tool_uses"][0]["result"] = "something else"
    records.write_text(json.dumps(row) + "\n")
    async with ScriptedModel(lambda _: Text("never")) as model, client() as connected:
        answered = await said(
            connected,
            "rl_fork",
            file=str(records),
            turn=2,
            model=endpoint(model),
            environment=str(records.parent / "files_env.py"),
        )
        assert model.requests == 0
    assert "turn 1, terminal" in answered["error"] and "something else" in answered["error"]
    assert answered["scores"] == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"turn": 9}, "turns 1 to 2"),
        ({"rollout": 4}, "rollouts 0 to 0"),
        ({"group": "7"}, "no group 7"),
        ({"file": "nowhere.jsonl"}, "no file nowhere.jsonl"),
        ({"turn": 0}, "turn"),
        ({"model": {"model": "m", "base_url": "http://127.0.0.1:9/v1", "api_key": "sk-secret"}}, "literal key"),
    ],
)
async def test_a_wrong_call_says_what_there_is(records: Path, changes: dict[str, Any], expected: str) -> None:
    arguments = {
        "file": str(records),
        "turn": 2,
        "model": {"model": "m", "base_url": "http://127.0.0.1:9/v1"},
        "environment": str(records.parent / "files_env.py"),
    }
    async with client() as connected:
        answered = await said(connected, "rl_fork", **{**arguments, **changes})
    assert expected in answered["error"] and answered["next"].startswith("rl_fork")


async def test_a_restricted_client_forks_records_of_runs_only(records: Path) -> None:
    model = {"model": "m", "base_url": "http://127.0.0.1:9/v1"}
    async with client(AllowedFiles()) as connected:
        refused = await said(connected, "rl_fork", file=str(records), turn=9, model=model)
        copied = runs_home() / "r1" / "groups.jsonl"
        copied.parent.mkdir(parents=True)
        copied.write_text(records.read_text())
        own = await said(connected, "rl_fork", file=str(copied), turn=9, model=model)
    assert "outside the folders" in refused["error"]
    assert "outside the folders" not in own["error"]


def test_the_toolset_of_a_rollout_has_the_ten_tools_only() -> None:
    assert [tool.name for tool in RL.tools] == list(RL_TOOLS)
    assert set(MCP_TOOLS) - set(RL_TOOLS) == {"rl_fork"}
