"""`engine serve RUN` and `evaluate --run RUN` with a real llama.cpp and a random model of a finished run."""

import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.paths import rl_home
from tests.support.adapters import random_adapter
from tests.support.loadable_model import loadable_model
from tests.training.weights.run_files import run_folder, saved

START_SECONDS = 60.0
PROGRAM = (sys.executable, "-m", "hermes_rl")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def _home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(home))


@pytest.fixture
def finished_run() -> str:
    """The id of a run that has exported its weights; its engine does not run."""
    folder = rl_home() / "runs" / "words-1"
    if not folder.exists():
        base = loadable_model(rl_home() / "base")
        settings = {"base_url": "http://127.0.0.1:1", "base_model": str(base)}
        run_folder(folder, [saved(3, final=True)], name="words-1", settings=settings)
        random_adapter(base, folder / "weights", seed=1)
    return "words-1"


@contextmanager
def serving(*words: str) -> Iterator[tuple["subprocess.Popen[bytes]", dict[str, Any]]]:
    command = [*PROGRAM, "engine", "serve", *words, "--port", "0", "--context", "256", "--parallel", "2", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            readable, _, _ = select.select([process.stdout], [], [], START_SECONDS)
            line = process.stdout.readline() if readable else b""
            assert line, process.stderr.read().decode() if readable else "no answer"
            yield process, json.loads(line)
        finally:
            process.kill()


def ask(url: str, **body: Any) -> dict[str, Any]:
    content = json.dumps({"messages": [{"role": "user", "content": "hi"}], **body}).encode()
    request = urllib.request.Request(f"{url}/chat/completions", content, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def is_gone(url: str) -> bool:
    """Whether the server stops answering within some seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            ask(url, max_tokens=1)
        except OSError:
            return True
        time.sleep(0.1)
    return False


def test_a_finished_run_answers_and_ctrl_c_ends_its_server(finished_run: str) -> None:
    with serving(finished_run) as (process, ready):
        answer = ask(ready["url"], model=finished_run, max_tokens=5)
        assert (ready["model"], answer["model"]) == ("words-1", "words-1")
        assert 0 < answer["usage"]["completion_tokens"] <= 5
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert is_gone(ready["url"])
    assert not list((rl_home() / "models").glob("serve-*"))


def test_a_killed_command_leaves_no_server(finished_run: str) -> None:
    with serving(finished_run) as (process, ready):
        process.send_signal(signal.SIGKILL)
        process.wait(20)
        assert is_gone(ready["url"])


def test_an_evaluation_uses_the_weights_of_the_run(finished_run: str, tmp_path: Path) -> None:
    words = ["evaluate", "--run", finished_run, "terminal_test", "--env.eval_size", "2", "--env.max_agent_turns", "1"]
    words += ["--env.max_token_length", "8", "--env.data_dir_to_save_evals", str(tmp_path / "evals"), "--json"]
    done = subprocess.run([*PROGRAM, *words], capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["scored"] == 2


def failure(*words: str) -> str:
    done = subprocess.run([*PROGRAM, *words], capture_output=True, text=True, check=False, timeout=60, env=os.environ)
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_an_unknown_run_says_what_could_be_named() -> None:
    assert "no weights found for nothing" in failure("evaluate", "terminal_test", "--run", "nothing")


def test_a_run_and_an_endpoint_exclude_each_other(finished_run: str) -> None:
    words = ("evaluate", "terminal_test", f"--run={finished_run}", "--openai.base_url", "http://127.0.0.1:1/v1")
    assert "--run starts an endpoint of its own; remove --openai.base_url" in failure(*words)


def test_a_run_needs_an_environment(finished_run: str) -> None:
    assert "name an environment too" in failure("evaluate", "--run", finished_run)
