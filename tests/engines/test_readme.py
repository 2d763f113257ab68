"""docs/start.md and the README, run as written: a clean clone, a fresh virtual environment, nothing else.

What the README runs on a model is part of docs/start.md, so it is run once.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.conftest import READY_DEADLINE_S, first_line

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


def readme_blocks() -> list[str]:
    """The bash blocks of the README, in order: three commands, model, rollouts and viewer, training."""
    return bash((ROOT / "README.md").read_text())


def start_blocks() -> list[str]:
    """All of the page, in order."""
    return bash((ROOT / "docs" / "start.md").read_text())


def bash(text: str) -> list[str]:
    found: list[str] = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone with today's files, committed or not."""
    tmp_path = tmp_path_factory.mktemp("newcomer")
    copied = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True).split("\n")
    source = tmp_path / "source"
    for name in filter(None, copied):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    git = ["git", "-C", str(source), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *command], check=True)
    return tmp_path


def home_of(folder: Path) -> Path:
    """The newcomer's home, the same for every shell of one test."""
    return next(parent / "home" for parent in (folder, *folder.parents) if (parent / "home").is_dir())


def shell(script: str, folder: Path, output: int) -> "subprocess.Popen[str]":
    """A newcomer's shell: the virtual environment of these tests is not in it, nor is anybody's home."""
    own = str(Path(sys.executable).parent)
    path = [str(Path(sys.base_prefix) / "bin"), *(part for part in os.environ["PATH"].split(":") if part != own)]
    environment = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    environment |= {"PATH": ":".join(path), "HOME": str(home_of(folder))}
    command = ["bash", "-euo", "pipefail", "-c", script]
    return subprocess.Popen(command, cwd=folder, text=True, env=environment, stdout=output, stderr=subprocess.STDOUT)


def run(script: str, folder: Path) -> str:
    with shell(script, folder, subprocess.PIPE) as process:
        output = process.communicate(timeout=280)[0]
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def checkout(home: Path) -> Path:
    (home / "home").mkdir()
    (home / "work").mkdir()
    run(f"git clone {home / 'source'} hermes-rl", home / "work")
    run(start_blocks()[0], home / "work" / "hermes-rl")
    return home / "work" / "hermes-rl"


@pytest.fixture(scope="module")
def model(checkout: Path) -> Iterator[None]:
    # `exec`, so that the process we end is the model's own.
    script = start_blocks()[1].replace("python scripts", "exec python scripts")
    with shell(script, checkout, subprocess.PIPE) as process:
        assert process.stdout is not None
        seen = ""
        while not (line := first_line(process.stdout, READY_DEADLINE_S)).startswith("ready: "):
            seen += line
            assert line, f"the small model did not start: {seen}"
        yield
        process.terminate()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_three_commands_of_the_readme_work_as_written(checkout: Path) -> None:
    shown = run("source .venv/bin/activate\n" + readme_blocks()[0], checkout)
    assert "written: word_count_env.py" in shown
    assert "word_count: no problems found" in shown
    for name in ("word_count_env.py", "test_word_count_env.py"):
        (checkout / name).unlink()


def test_the_readme_starts_and_asks_the_model_as_the_ten_minutes_do() -> None:
    assert readme_blocks()[1] in start_blocks()[1]
    process, view = readme_blocks()[2].split("hermes-rl view")
    assert [process, f"hermes-rl view{view}"] == start_blocks()[2:4]


def looked_at(block: str, folder: Path) -> str:
    """What a viewer says once it is there; it is ended then, as with Ctrl-C."""
    with shell(f"source .venv/bin/activate\nexec {block}", folder, subprocess.PIPE) as process:
        assert process.stdout is not None
        said = first_line(process.stdout, READY_DEADLINE_S)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    return said


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("model")
def test_the_ten_minutes_work_as_written(checkout: Path) -> None:
    activate = "source .venv/bin/activate\n"
    shown = [
        looked_at(block, checkout) if " view " in block else run(activate + block, checkout)
        for block in start_blocks()[2:]
    ]
    process, view, evaluate, init, validate, own, rescore = shown
    assert "process 5/5" in process
    assert view.startswith("viewer: http://127.0.0.1:")
    assert "eval/mean_reward" in evaluate
    assert (checkout / "evals" / "first" / "metrics.json").exists()
    assert "written: word_count_env.py" in init
    assert "word_count: no problems found" in validate
    assert "process 3/3" in own
    assert "written: data/word_count.rescored.jsonl" in rescore
    counted = len((checkout / "word_count_env.py").read_text().splitlines())
    assert f"`word_count_env.py`, {counted} lines" in (ROOT / "docs" / "start.md").read_text()
