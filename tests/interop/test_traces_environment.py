"""An environment made from traces: what it takes from them, and that it can be validated."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hermes_rl.cli.init import init
from hermes_rl.core.errors import ConfigError
from hermes_rl.environment.loading.loader import load_environment
from hermes_rl.interop.traces.environment import environment_files, read_tasks
from hermes_rl.validation.validate import validate_environment

CALL = {"id": "c", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "wc -l a"}'}}


def trace(number: int, answer: str, *calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    said: list[dict[str, Any]] = [{"role": "user", "content": f"What is {number} times 17? Say only the number."}]
    for call in calls:
        said += [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "1"}]
    return {"messages": [*said, {"role": "assistant", "content": answer}], **fields}


def written(folder: Path, *traces: dict[str, Any]) -> Path:
    path = folder / "traces.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in traces))
    return path


def test_the_environment_of_unscored_traces_is_valid(tmp_path: Path) -> None:
    path = written(tmp_path, *(trace(number, str(number * 17)) for number in range(3, 9)))
    done = CliRunner().invoke(init, ["sums", "--from-traces", str(path), "--dir", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "6 tasks; toolsets: none" in done.output
    assert f"hermes-rl validate {tmp_path}/sums_env.py" in done.output
    report = validate_environment(load_environment(str(tmp_path / "sums_env.py")), items=3)
    assert report.ok, str(report)
    assert min(report.items.values()) >= 1


def test_the_oracle_is_the_best_trace_with_its_calls(tmp_path: Path) -> None:
    traces = [trace(5, "1", score=0.2), trace(5, "85", CALL, score=0.9), trace(6, "102", CALL, score=1)]
    found = read_tasks(written(tmp_path, *traces))
    assert [task["answer"] for task in found.tasks] == ["85", "102"]
    assert found.tasks[0]["turns"] == [[("terminal", {"command": "wc -l a"})]]
    assert found.toolsets == ("terminal",)
    assert 'default_toolsets = ("terminal",)' in environment_files("sums", found)["sums_env.py"]


def test_calls_of_unknown_tools_are_not_repeated(tmp_path: Path) -> None:
    other = {**CALL, "function": {"name": "Bash", "arguments": "{}"}}
    found = read_tasks(written(tmp_path, trace(5, "85", other), trace(6, "102", other)))
    assert [task["turns"] for task in found.tasks] == [[], []]
    assert found.unknown_tools == {"Bash": 2}
    assert found.toolsets == ("terminal",)


def test_both_splits_have_a_task(tmp_path: Path) -> None:
    found = read_tasks(written(tmp_path, trace(5, "85"), trace(6, "102")))
    assert sorted(task["split"] for task in found.tasks) == ["eval", "train"]


def test_a_task_that_no_trace_solved_is_left_out(tmp_path: Path) -> None:
    traces = [trace(5, "85"), trace(6, "102"), trace(7, "0", score=0.0)]
    assert read_tasks(written(tmp_path, *traces)).left_out == {"without a successful answer": 1}
    with pytest.raises(ConfigError, match="1 can be used \\(left out: 1 without a successful answer\\)"):
        read_tasks(written(tmp_path, *traces[1:]))
