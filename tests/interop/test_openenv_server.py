"""openenv 0.10, both ways: its servers started as programs, and its clients on our server.

The servers are one with an MCP tool, and the one that `openenv init` writes.
"""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.cli.environment_command import resolve_environment
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.prebuild import NO_MODEL
from hermes_rl.environment.scripted_policy import Step, run_script

pytestmark = [pytest.mark.long, pytest.mark.slow]

HERE = Path(__file__).parent
SCRIPT = HERE.parents[1] / "scripts" / "interop_environment"


@pytest.fixture(scope="module")
def python() -> Path:
    home = subprocess.check_output([SCRIPT, "openenv"], text=True, timeout=2200).strip()
    return Path(home, "bin", "python")


@asynccontextmanager
async def served(python: Path, folder: Path, app: str) -> AsyncIterator[HermesAgentBaseEnv]:
    kind = resolve_environment("openenv:")
    config, _ = kind.config_init()
    settings = {
        "server_command": [str(python), "-m", "uvicorn", "--app-dir", str(folder), app, "--port", "{port}"],
        "server_start_timeout": 300.0,
        "rollout_retries": 0,
        "terminal_backend": "local",
        "train_seeds": 4,
        "eval_seeds": 1,
    }
    env = kind(config.model_copy(update=settings), [NO_MODEL.model_copy(update={"health_check": False})])
    async with env.opened():
        yield env


async def test_an_environment_with_an_mcp_tool_is_played_to_its_end(python: Path) -> None:
    plays: dict[float, list[Step]] = {
        1.0: [("guess", {"number": 5}), ("guess", {"number": 2}), "unheard"],
        0.0: [("guess", {"number": "two"}), "I give up"],
    }
    async with served(python, HERE / "fixtures" / "openenv", "guess_env:app") as env:
        item = (env.train_items() or [])[2]
        rollouts = [(await run_script(env, item, steps)).rollout for steps in plays.values()]
    assert [rollout.score for rollout in rollouts] == list(plays)
    assert [message["content"] for message in rollouts[0].messages if message["role"] == "tool"] == ["lower", "right"]
    assert rollouts[1].tool_uses[0].error is not None


async def test_the_environment_that_openenv_init_writes_is_played(python: Path, tmp_path: Path) -> None:
    subprocess.run([python.with_name("openenv"), "init", "ping_env"], cwd=tmp_path, check=True, timeout=300)
    async with served(python, tmp_path, "ping_env.server.app:app") as env:
        item = (env.train_items() or [])[0]
        rollout = (await run_script(env, item, [("act", {"message": "hello"}), ("act", {}), "done"])).rollout
    shown = [message["content"] for message in rollout.messages if message["role"] == "tool"]
    assert "hello" in shown[0]
    assert rollout.tool_uses[1].error is not None
    assert rollout.score is not None
    assert rollout.score > 0


@pytest.mark.parametrize("by", ["steps", "tools"])
def test_the_clients_of_openenv_play_our_environment_to_its_end(python: Path, by: str) -> None:
    done = ["submit_answer", {"text": "done"}]
    words = ["apple", "river"]
    plays: list[dict[str, Any]] = [
        {"client": by, "seed": seed, "calls": [["terminal", {"command": f"echo {word} > out.txt"}], done]}
        for seed, word in enumerate(words)
    ]
    plays.append({"client": by, "seed": 2, "calls": [done]})
    command = [sys.executable, "-m", "hermes_rl", "env", "serve", "terminal_test", "--openenv", "--json"]
    command += ["--env.max_agent_turns", "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            played = subprocess.run(
                [python, HERE / "fixtures" / "openenv" / "play.py", url],
                input=json.dumps(plays),
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                timeout=300,
            )
        finally:
            server.terminate()
    assert server.returncode == 0
    ends = json.loads(played.stdout)
    assert [(reward, done) for _, _, reward, done, _ in ends] == [(1.0, True), (1.0, True), (0.0, True)]
    assert [steps for *_, steps in ends] == [2, 2, 1]
    assert {"terminal", "submit_answer"} <= set(ends[0][0])
    assert all(shown == "The episode is over." for _, shown, *_ in ends)
