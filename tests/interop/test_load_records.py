"""Recorded rollouts as rows and tables, from files as `process` and `evaluate` write them."""

import json
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError, Failure, FailureSource
from hermes_rl.core.trajectory import Group, Provenance, Rollout, Span, StopReason, Timing, ToolUse, Usage
from hermes_rl.interop.records import Record, load_records
from hermes_rl.store.records import RecordWriter, group_to_record, rollout_to_record

SCORED = Rollout(
    item_id="i",
    index=0,
    seed=7,
    score=0.5,
    stop_reason=StopReason.NATURAL,
    messages=[{"role": "user", "content": "Do it."}, {"role": "assistant", "content": "Did it."}],
    components={"speed": 0.25},
    turns_used=2,
    tool_uses=(ToolUse(1, "c1", "terminal", "{}", "ok"), ToolUse(1, "c2", "terminal", "{}", "", "no such file")),
    usage=Usage(100, 20),
    timings=(Timing(Span.MODEL, "m", 0.0, 1.5), Timing(Span.TOOL, "t", 1.5, 0.25), Timing(Span.MODEL, "m", 2.0, 0.5)),
    seconds=3.0,
    metadata={"prompt_length": 1},
)
FAILED = Rollout(item_id="i", index=1, seed=8, messages=[], failure=Failure(FailureSource.SANDBOX, "start", "no bwrap"))
GROUP = Group(
    item_id="i",
    item={"n": 1},
    rollouts=(SCORED, FAILED),
    provenance=Provenance(environment="e", environment_hash="h", model="m", versions={}),
    id="g",
    draw=3,
)
SAMPLE = {"prompt": "Do it.", "response": "Did it.", "reward": 0.5, "item": {"n": 1}, **rollout_to_record(SCORED)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "groups.jsonl"
    with RecordWriter(path) as writer:
        writer.write(group_to_record(GROUP))
    return path


def test_a_row_has_the_group_and_the_rollout(file: Path) -> None:
    row = load_records(file)[0]
    assert (row.environment, row.model, row.group, row.draw, row.item) == ("e", "m", "g", 3, {"n": 1})
    assert (row.prompt, row.response, row.score, row.stop_reason) == ("Do it.", "Did it.", 0.5, "natural")
    assert (row.tool_calls, row.tool_errors, row.model_seconds, row.tool_seconds) == (2, 1, 2.0, 0.25)
    assert row.rollout == SCORED


def test_a_failed_rollout_has_no_score_and_names_its_cause(file: Path) -> None:
    row = load_records(file)[1]
    assert (row.score, row.failure, row.failure_message, row.prompt) == (None, "sandbox/start", "no bwrap", None)


def test_the_folder_of_an_evaluation_is_read_by_its_groups(file: Path) -> None:
    assert [row.group for row in load_records(file.parent)] == ["g", "g"]


def test_samples_are_rows_without_a_group(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").write_text(json.dumps(SAMPLE) + "\n" + '{"prompt": "torn')
    rows = load_records(tmp_path)
    assert [(row.group, row.item, row.response) for row in rows] == [(None, {"n": 1}, "Did it.")]


def test_a_slice_of_records_is_records(file: Path) -> None:
    assert [row.index for row in load_records(file)[1:]] == [1]


def test_pandas_has_a_column_for_each_field_and_each_part_of_the_score(file: Path) -> None:
    table = load_records(file).to_pandas()
    plain = [field.name for field in fields(Record) if field.name not in ("components", "rollout")]
    assert list(table.columns) == [*plain, "component/speed"]
    assert table["score"].isna().tolist() == [False, True]
    assert table["item"][0] == {"n": 1}


def test_arrow_has_the_same_columns_with_their_types(file: Path) -> None:
    records = load_records(file)
    table = records.to_arrow()
    assert table.column_names == list(records.to_pandas().columns)
    types = {name: str(table.schema.field(name).type) for name in ("item", "turns", "score", "failure", "draw")}
    assert types == {"item": "string", "turns": "int64", "score": "double", "failure": "string", "draw": "int64"}
    assert table.column("component/speed").to_pylist() == [0.25, None]


def test_an_empty_file_is_an_empty_table(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").touch()
    assert load_records(tmp_path / "none.jsonl").to_arrow().num_rows == 0


@pytest.mark.parametrize(("method", "package"), [("to_pandas", "pandas"), ("to_arrow", "pyarrow")])
def test_a_missing_package_is_named_with_its_pip_line(
    file: Path, method: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=f"pip install {package}"):
        getattr(load_records(file), method)()


def test_what_is_not_a_record_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").write_text(json.dumps(SAMPLE) + "\n{}\n")
    with pytest.raises(ConfigError, match="line 2"):
        load_records(tmp_path)
    with pytest.raises(ConfigError, match="neither"):
        load_records(tmp_path.parent)
    with pytest.raises(ConfigError, match="does not exist"):
        load_records(tmp_path / "nothing.jsonl")
