"""`hermes-rl quickstart` with a scripted model in place of the small one."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.console.run_command import run_click
from tests.support.scripted_model import Script, ScriptedModel, Text, delayed

COMMAND = (sys.executable, "-m", "hermes_rl", "quickstart")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def writes_the_word(request: dict[str, Any]) -> Text:
    word = request["messages"][-1]["content"].split()[1]
    call = {"name": "terminal", "arguments": {"command": f"echo {word} > out.txt"}}
    return Text(f"<tool_call>\n{json.dumps(call)}\n</tool_call>")


async def quickstart(script: Script, *words: str) -> subprocess.CompletedProcess[str]:
    async with ScriptedModel(script) as model:
        command = [*COMMAND, "--base-url", model.base_url, "--model", "scripted", *words]
        return await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, check=False, timeout=100
        )


async def test_it_makes_rollouts_evaluates_and_shows_each_command() -> None:
    done = await quickstart(writes_the_word, "--groups", "1", "--eval-items", "2", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["rollouts"]["scored"], result["evaluation"]["scored"]) == (4, 2)
    assert Path(result["rollouts"]["path"]).exists()
    assert [stage["command"].split()[1] for stage in result["stages"]] == ["process", "evaluate"]
    for stage in result["stages"]:
        assert f"by hand: {stage['command']}\n" in done.stderr
        assert f"done in {stage['seconds']} s" in done.stderr
    assert "hermes-rl view quickstart/rollouts.jsonl" in done.stderr


async def test_ctrl_c_leaves_nothing_running(tmp_path: Path) -> None:
    async with ScriptedModel(delayed(60, writes_the_word)) as model:
        command = [*COMMAND, "--base-url", model.base_url, "--model", "scripted"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                await _until(lambda: bool(_processes_in(tmp_path, "process terminal_test")))
                await _until(lambda: model.requests > 0)
                process.send_signal(signal.SIGINT)
                _, errors = await asyncio.to_thread(process.communicate, timeout=30)
            finally:
                process.kill()
    assert process.returncode == 130, errors
    assert errors.endswith("stopped\n")
    await _until(lambda: not _processes_in(tmp_path, ""))


async def _until(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


def _processes_in(folder: Path, words: str) -> list[int]:
    """The processes of our home whose command line contains the words."""
    mark = f"HERMES_HOME={folder / 'home'}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if mark in (entry / "environ").read_bytes().split(b"\0") and words in line:
                    found.append(int(entry.name))
        except OSError:
            continue
    return found


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    from hermes_rl.cli.main import hermes_rl

    assert run_click(hermes_rl, ["quickstart", *words], prog_name="hermes-rl") == 2
    return capsys.readouterr().err


def test_missing_packages_name_the_line_that_installs_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    present = ("xllamacpp", "gguf", "renderers")
    monkeypatch.setattr("hermes_rl.cli.quickstart.find_spec", lambda name: name if name in present else None)
    assert "needs tinker and transformers: pip install 'hermes-rl[quickstart,train,tokens]'" in refused(
        capsys, "--train"
    )


def test_training_another_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--train", "--base-url", "http://127.0.0.1:1/v1", "--model", "other")
    assert "--train trains the small model" in refused(capsys, *words)


def test_it_is_the_first_of_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    from hermes_rl.cli.main import hermes_rl

    run_click(hermes_rl, ["--help"], prog_name="hermes-rl")
    assert capsys.readouterr().out.split("Run:\n")[1].split()[0] == "quickstart"


def test_the_results_of_training_are_shown_with_their_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    from hermes_rl.cli.quickstart import show_results

    result: dict[str, Any] = {
        "rollouts": {"path": "quickstart/rollouts.jsonl"},
        "evaluation": {"metrics": {"eval/mean_reward": 1.0, "eval/scored": 20.0}},
        "training": {
            "held_out": [
                {**rate, "environment": "append_log", "decoding": "greedy", "items": 40}
                for rate in (
                    {"moment": "before", "mean": 0.1, "low": 0.03, "high": 0.24},
                    {"moment": "after", "mean": 0.95, "low": 0.83, "high": 0.99},
                )
            ]
        },
        "run_id": "abc",
    }
    show_results(result)
    shown = capsys.readouterr().err
    assert "append_log: 0.100 [0.03, 0.24] before, 0.950 [0.83, 0.99] after, on 40 held-out items" in shown
    assert "hermes-rl engine serve abc" in shown
