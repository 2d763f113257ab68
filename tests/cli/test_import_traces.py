"""`import`, and what comes after it, as a person and as a program meet them."""

import json
from pathlib import Path
from typing import Any

import pytest
from atif import Trajectory
from click.testing import CliRunner, Result

from hermes_rl.cli.export import export
from hermes_rl.cli.import_traces import FORMATS, import_traces
from hermes_rl.interop.traces import formats
from hermes_rl.store.records import RecordWriter, group_to_record, read_groups
from tests.cli.test_command import hermes_rl
from tests.cli.test_view import asked, started
from tests.interop.test_atif import group, rollout

FIXTURES = Path(__file__).parent.parent / "interop" / "fixtures"
TWELVE = """
from hermes_rl import HermesAgentBaseEnv

class TwelveEnv(HermesAgentBaseEnv):
    name = "twelve"
    default_toolsets = ("terminal",)

    def train_items(self):
        return [1]

    def format_prompt(self, item):
        return "?"

    async def compute_reward(self, item, result, ctx):
        return 1.0 if "12" in result.final_response and result.tools_used == ["terminal"] else 0.0
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(command: Any, *arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(one) for one in arguments], standalone_mode=False)


def test_the_command_offers_every_format() -> None:
    assert tuple(formats.FORMATS) == FORMATS


def test_what_was_read_and_redacted_is_shown() -> None:
    done = run(import_traces, FIXTURES / "claude_code.jsonl", "--out", "groups.jsonl")
    assert done.return_value == 0
    for said in (
        "2 traces from 15 records in 2 groups; 0 scored",
        "1 file of claude-code",
        "redacted: Anthropic key, 1 distinct, 2 times (1 in tool results, 1 in answers)",
        "written: groups.jsonl",
    ):
        assert said in done.stderr
    assert "api03" not in done.output


def test_malformed_lines_set_the_exit_code() -> None:
    Path("a.jsonl").write_text((FIXTURES / "openai_finetuning.jsonl").read_text() + "{\n")
    done = run(import_traces, "a.jsonl", "--out", "groups.jsonl", "--json")
    assert done.return_value == 1
    told = json.loads(done.stdout)
    assert (told["traces"], told["malformed"], told["path"]) == (3, 1, "groups.jsonl")
    assert told["errors"][0].startswith("a.jsonl:4: ")
    assert "1 malformed records" in done.stderr


def test_imported_groups_are_rescored_and_exported() -> None:
    Path("twelve_env.py").write_text(TWELVE)
    run(import_traces, FIXTURES / "openai_logged.jsonl", "--out", "groups.jsonl")
    scored = hermes_rl("rescore", "groups.jsonl", "--env", "twelve_env.py", "--json")
    assert scored.returncode == 0, scored.stderr
    assert json.loads(scored.stdout)["rollouts"]["newly_scored"] == 2
    done = run(export, "groups.rescored.jsonl", "--to", "sft", "-o", "sft.jsonl", "--min-score", "1")
    assert done.return_value == 0
    [row] = map(json.loads, Path("sft.jsonl").read_text().splitlines())
    assert [message["role"] for message in row["messages"]] == "system user assistant tool assistant".split()
    assert [tool["function"]["name"] for tool in row["tools"]] == ["terminal"]


def written(path: Path) -> Path:
    with RecordWriter(path) as writer:
        writer.write(group_to_record(group(rollout(), rollout(index=1, score=0.5))))
    return path


@pytest.mark.parametrize("out", ["documents", "documents.jsonl"])
def test_groups_go_out_as_atif_and_come_back_equal(out: str) -> None:
    path = written(Path("groups.jsonl"))
    assert run(export, path, "--to", "atif", "-o", out).return_value == 0
    texts = Path(out).read_text().splitlines() if "." in out else [one.read_text() for one in Path(out).iterdir()]
    assert {Trajectory.model_validate_json(text).trajectory_id for text in texts} == {"g-0", "g-1"}
    assert run(import_traces, out, "--out", "back.jsonl").return_value == 0
    assert list(read_groups(Path("back.jsonl"))) == list(read_groups(path))


def test_an_export_replaces_nothing_unasked() -> None:
    path = written(Path("groups.jsonl"))
    Path("out").mkdir()
    assert "out exists; choose another" in str(run(export, "atif", path, "-o", "out").exception)
    assert "--overwrite" in str(run(export, "atif", path, "-o", path).exception)


def test_the_folder_of_a_harbor_job_opens_in_the_viewer() -> None:
    with started(FIXTURES / "harbor_job") as (url, _):
        [source] = asked(url, "/api/home")["sources"]
        [row] = asked(url, f"/api/s/{source['id']}/groups")["rows"]
        group = asked(url, f"/api/s/{source['id']}/groups/{row['id']}")
        assert [one["score"] for one in group["rollouts"]] == [1.0]
