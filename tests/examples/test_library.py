"""examples/library.py, its notebook and docs/library.md, run on a scripted model."""

import ast
import asyncio
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_model import Calls, Reply, ScriptedModel, Text

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def doubles(body: dict[str, Any]) -> Reply:
    """Solves the task of the examples in one call."""
    if body["messages"][-1]["role"] == "tool":
        return Text("Done.")
    prompt = next(message["content"] for message in body["messages"] if message["role"] == "user")
    number = int(re.search(r"the number (\d+)", prompt)[1])  # type: ignore[index]
    return Calls([("terminal", json.dumps({"command": f"echo {2 * number} > answer.txt"}))])


async def test_the_script_writes_rollouts_a_table_and_a_picture(tmp_path: Path) -> None:
    async with ScriptedModel(doubles) as model:
        command = [sys.executable, str(EXAMPLES / "library.py"), model.base_url, model.model_name]
        process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE)
        shown, _ = await process.communicate()
    assert process.returncode == 0
    assert len(re.findall(r"(?m)^\d+ .* 1\.0 +natural +1 ", shown.decode())) == 16
    assert (tmp_path / "doubling.png").read_bytes().startswith(b"\x89PNG")


async def test_the_program_of_the_guide_prints_the_scores_of_each_item(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "library.md").read_text()
    program = page.split("```python\n")[1].split("```")[0]
    async with ScriptedModel(lambda _: Text("No.")) as model:
        here = program.replace("http://127.0.0.1:8901/v1", model.base_url).replace("smollm2", model.model_name)
        command = [sys.executable, "-c", here]
        process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE)
        shown, _ = await process.communicate()
    assert process.returncode == 0
    assert len(re.findall(r"(?m)^\w+ +0\.0 +4$", shown.decode())) == 4


async def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    cells = json.loads((EXAMPLES / "library.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": "__main__"}
    async with ScriptedModel(doubles) as model:
        for source in sources:
            here = source.replace("http://127.0.0.1:8901/v1", model.base_url).replace("smollm2", model.model_name)
            code = compile(here, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            waiting = eval(code, names)
            if inspect.isawaitable(waiting):
                await waiting
    assert names["table"]["score"].tolist() == [1.0] * 16


def test_the_notebook_is_stored_without_outputs() -> None:
    cells = json.loads((EXAMPLES / "library.ipynb").read_text())["cells"]
    assert [cell["outputs"] for cell in cells if cell["cell_type"] == "code" and cell["outputs"]] == []
