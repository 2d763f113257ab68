"""One rewrite of each idiom of hermes-agent's own environments, run by `python FILE process` and `evaluate`."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_model import Calls, Reply, ScriptedModel, Status, Text

FILES = Path(__file__).with_name("fixtures")
# What the agent does for a prompt with these words.
COMMANDS = {
    "greeting.txt": "printf hello > ~/greeting.txt",
    "sum.txt": "printf 'It is 42' > ~/sum.txt",
    "Write 12": "echo 12 > result",
    "Write 34": "echo 33 > result",
    "double(n)": "printf 'def double(n):\\n    return 2 * n\\n' > solution.py",
    "triple(n)": "touch solution.py",
    "Preset easy": "echo '{\"funds\": 100000}' > state.json",
    "Preset hard": "test -e state.json",
    "prints 3": "echo 'echo 3' > solution.sh; bash solution.sh",
    "prints 5": "echo 'echo 6' > solution.sh",
}


def script(request: dict[str, Any]) -> Reply:
    """Run the command of the prompt, or search for it, then answer; a judge's request gets a grade or a failure."""
    messages = request["messages"]
    prompt = next(message["content"] for message in messages if message["role"] == "user")
    if prompt.startswith("Grade"):
        return Text('Here: {"score": 0.5}') if "opened in 191" in prompt else Status(400)
    if messages[-1]["role"] == "tool" or not request.get("tools"):
        return Text("It was opened in 1999." if "year" in prompt else "Done.")
    if "year" in prompt:
        return Calls([("web_search", json.dumps({"query": prompt}))])
    command = next((command for words, command in COMMANDS.items() if words in prompt), None)
    return Text("Two.") if command is None else Calls([("terminal", json.dumps({"command": command}))])


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel(script) as model:
        yield model


async def run(model: ScriptedModel, folder: Path, file: str, mode: str, *flags: str) -> None:
    """In an author's checkout, where hermes-agent's own modules are gone."""
    (folder / "environments").mkdir(exist_ok=True)
    shutil.copy(FILES / file, folder / "environments" / file)
    endpoint = ["--openai.base_url", model.base_url, "--openai.model_name", "scripted", "--openai.max_retries", "0"]
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, f"environments/{file}", mode, *endpoint, *flags],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


async def scores(model: ScriptedModel, folder: Path, file: str, *flags: str) -> list[list[float]]:
    output = folder / "output.jsonl"
    await run(model, folder, file, "process", "--env.data_path_to_save_groups", str(output), *flags)
    # Groups are written as they finish.
    return sorted([json.loads(line)["scores"] for line in output.read_text().splitlines()], reverse=True)


async def metrics(model: ScriptedModel, folder: Path, file: str, *flags: str) -> dict[str, float]:
    await run(model, folder, file, "evaluate", "--env.data_dir_to_save_evals", str(folder / "evals"), *flags)
    measured: dict[str, float] = json.loads((folder / "evals" / "metrics.json").read_text())["metrics"]
    return measured


@pytest.fixture
def web(tmp_path: Path) -> list[str]:
    page = {"url": "https://bridges.test/1", "title": "Bridges", "text": "Bridge number 1 was opened in 1901."}
    corpus = tmp_path / "pages.jsonl"
    corpus.write_text(json.dumps(page))
    return ["--env.tool_settings", json.dumps({"web": {"provider": "bm25", "corpus": str(corpus)}})]


async def test_file_tasks_with_partial_credit(model: ScriptedModel, tmp_path: Path) -> None:
    assert await scores(model, tmp_path, "file_tasks_env.py") == [[1.0, 1.0], [0.5, 0.5]]
    logged = [json.loads(line) for line in (tmp_path / "output.metrics.jsonl").read_text().splitlines()]
    assert (logged[-1]["train/avg_reward"], logged[-1]["train/partial_match_rate"]) == (0.75, 0.5)


async def test_an_evaluation_by_single_chats(model: ScriptedModel, tmp_path: Path) -> None:
    assert await metrics(model, tmp_path, "file_tasks_env.py") == {"eval/num_samples": 2}
    assert model.requests == 2


async def test_tests_that_arrive_after_the_agent(model: ScriptedModel, tmp_path: Path) -> None:
    assert await scores(model, tmp_path, "hidden_tests_env.py", "--env.total_steps", "2") == [[1.0], [0.0]]


async def test_an_evaluation_with_loops_threads_and_deadlines_of_its_own(model: ScriptedModel, tmp_path: Path) -> None:
    assert await metrics(model, tmp_path, "hidden_tests_env.py") == {
        "eval/pass_rate_easy": 1.0,
        "eval/pass_rate_hard": 0.0,
        "eval/pass_rate": 0.5,
    }
    streamed = [json.loads(line) for line in (tmp_path / "environments/logs/samples.jsonl").read_text().splitlines()]
    assert {task["task_name"]: task["reward"] for task in streamed} == {"reward-file": 1.0, "exit-code": 0.0}


async def test_a_judge_with_a_fallback(model: ScriptedModel, tmp_path: Path, web: list[str]) -> None:
    got = await scores(model, tmp_path, "judged_answer_env.py", "--env.total_steps", "27", *web)
    # Judged (0.5) for 1910 to 1919; else two of the three words of "opened in 19xx"; and 0.4 for the rest.
    judged, matched = 0.6 * 0.5 + 0.4, 0.6 * 2 / 3 + 0.4
    assert {round(score, 6) for [score] in got} == {round(judged, 6), round(matched, 6)}
    logged = [json.loads(line) for line in (tmp_path / "output.metrics.jsonl").read_text().splitlines()]
    assert 0 < logged[-1]["train/judged_share"] < 1


async def test_an_evaluation_that_rolls_its_buffers_back(model: ScriptedModel, tmp_path: Path, web: list[str]) -> None:
    measured = await metrics(model, tmp_path, "judged_answer_env.py", *web)
    assert measured["eval/left_in_buffers"] == 0
    assert 0.7 <= measured["eval/mean_reward"] <= 0.8


async def test_test_code_from_rows_of_a_dataset(model: ScriptedModel, tmp_path: Path) -> None:
    assert await scores(model, tmp_path, "code_rows_env.py") == [[1.0], [0.1]]


async def test_a_simulation_that_the_agent_changes(model: ScriptedModel, tmp_path: Path) -> None:
    assert await scores(model, tmp_path, "simulation_env.py", "--env.total_steps", "3") == [[1.0], [1.0], [0.0]]


async def test_a_sandbox_prepared_by_a_tool_call_before_the_agent(model: ScriptedModel, tmp_path: Path) -> None:
    measured = await metrics(model, tmp_path, "simulation_env.py")
    # Funds of 1000 and 2000 stay as they were: log(2) and log(3) of log(101).
    assert measured["eval/easy"] == 1.0
    assert measured["eval/hard"] == pytest.approx(0.5 + 0.5 * (0.150191 + 0.238049) / 2, abs=1e-5)


async def test_a_group_that_goes_through_super(model: ScriptedModel, tmp_path: Path) -> None:
    expected = 0.7 + 0.15 + 0.15 * 0.6
    assert await scores(model, tmp_path, "hindsight_env.py") == [[pytest.approx(expected)] * 2]


async def test_an_evaluation_by_single_trajectories(model: ScriptedModel, tmp_path: Path) -> None:
    measured = await metrics(model, tmp_path, "hindsight_env.py")
    assert measured == {"eval/mean_reward": pytest.approx(0.07 + 0.15 + 0.09)}


async def test_toolsets_that_the_environment_samples_itself(model: ScriptedModel, tmp_path: Path) -> None:
    assert await scores(model, tmp_path, "own_toolsets_env.py") == [[1.0], [1.0]]
    sent = {tool["function"]["name"] for body in model.bodies for tool in body["tools"]}
    assert sent == {"terminal", "process"}
