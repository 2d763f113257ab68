"""`export` and `report` as a person and as a program meet them."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hermes_rl.cli.export import export
from hermes_rl.cli.report import report
from hermes_rl.store.records import RecordWriter, group_to_record
from tests.store.test_export import group, rollout


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "groups.jsonl"
    with RecordWriter(path) as writer:
        writer.write(group_to_record(group(rollout(1.0), rollout(0.0), rollout(None))))
        writer.write(group_to_record(group(rollout(0.5), rollout(0.25))))
    return path


def run(command: Any, *arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, standalone_mode=False)


def rows(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_sft_writes_rows_and_says_what_was_left_out(groups: Path) -> None:
    done = run(export, "sft", "groups.jsonl", "-o", "out/sft.jsonl", "--min-score", "0.5")
    assert done.return_value == 0
    assert [row["score"] for row in rows("out/sft.jsonl")] == [1.0, 0.5]
    for said in (
        "2 rows of 5 rollouts in 2 groups",
        "left out: 2 rollouts below min score",
        "left out: 1 rollouts without a score",
        "written: out/sft.jsonl",
    ):
        assert said in done.stderr
    assert done.stdout == ""


def test_json_leaves_standard_output_to_programs(groups: Path) -> None:
    done = run(export, "dpo", "groups.jsonl", "-o", "dpo.jsonl", "--min-gap", "0.5", "--json")
    assert json.loads(done.stdout) == {
        "rows": 1,
        "groups": 2,
        "rollouts": 5,
        "left_out": {"rollouts_without_a_score": 1, "groups_without_a_difference": 1},
        "path": "dpo.jsonl",
    }


def test_the_options_choose_the_form_of_the_rows(groups: Path) -> None:
    run(export, "sft", "groups.jsonl", "-o", "a.jsonl", "--best", "--prompt-completion", "--without-examples")
    assert [(row["score"], len(row["prompt"])) for row in rows("a.jsonl")] == [(1.0, 2), (0.5, 2)]
    run(export, "dpo", "groups.jsonl", "groups.jsonl", "-o", "b.jsonl", "--pairs", "all")
    assert len(rows("b.jsonl")) == 4


def test_no_row_is_told_by_the_exit_status(groups: Path) -> None:
    done = run(export, "sft", "groups.jsonl", "-o", "sft.jsonl", "--min-score", "7", "--json")
    assert done.return_value == 1
    assert "no rollout qualifies" in done.stderr
    assert json.loads(done.stdout)["path"] is None
    assert not Path("sft.jsonl").exists()


def test_a_report_is_written_beside_its_file(groups: Path) -> None:
    done = run(report, "groups.jsonl", "--groups", "1", "--json")
    told = json.loads(done.stdout)
    assert told.pop("bytes") == Path("groups.html").stat().st_size
    assert told == {"path": "groups.html", "groups": 2, "groups_held": 1, "rollouts": 5, "rollouts_held": 3}
    assert "1 of 2 groups" in done.stderr
    assert "written: groups.html" in done.stderr
    assert Path("groups.html").read_text().startswith("<!doctype html>")


def test_a_report_goes_where_it_is_told(groups: Path) -> None:
    run(report, "groups.jsonl", "-o", "pages/first.html")
    assert Path("pages/first.html").exists()
    assert not Path("groups.html").exists()


def test_a_report_of_a_folder_is_in_it_and_one_of_several_is_here(groups: Path) -> None:
    Path("evaluation").mkdir()
    groups.rename("evaluation/groups.jsonl")
    run(report, "evaluation")
    assert Path("evaluation/report.html").exists()
    run(report, "evaluation", "evaluation/groups.jsonl")
    assert Path("report.html").exists()


def test_a_report_of_what_is_not_there_says_what_is(groups: Path) -> None:
    done = run(report, "nothing")
    assert "there is no file, folder or run 'nothing'" in str(done.exception)
    assert not Path("nothing.html").exists()
