"""Traces of other software as groups, from one fixture per format."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import Group, Rollout
from hermes_rl.interop import atif
from hermes_rl.interop.traces.importer import ImportOptions, ImportReport, import_groups
from hermes_rl.store.records import read_groups
from tests.interop.test_atif import group, rollout

FIXTURES = Path(__file__).parent / "fixtures"
QUESTION = "How many lines has data.csv?"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "groups.jsonl"


def imported(out: Path, *names: str, **options: Any) -> tuple[ImportReport, list[Group]]:
    paths = [Path(name) if Path(name).is_absolute() else FIXTURES / name for name in names]
    report = import_groups(paths, out, ImportOptions(**options), overwrite=True)
    return report, list(read_groups(out))


def only(groups: list[Group]) -> Rollout:
    [one] = groups
    [rollout] = one.rollouts
    return rollout


def roles(rollout: Rollout) -> str:
    return " ".join(message["role"] for message in rollout.messages)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("anthropic.jsonl", "anthropic"),
        ("otel.jsonl", "otel"),
        ("langfuse.jsonl", "langfuse"),
        ("langfuse_traces.json", "langfuse"),
        ("langsmith.jsonl", "langsmith"),
    ],
)
def test_the_calls_of_a_conversation_become_one_rollout(out: Path, name: str, form: str) -> None:
    report, groups = imported(out, name)
    found = only(groups)
    assert report.files == {form: 1}
    assert roles(found) == "system user assistant tool assistant"
    assert found.messages[1]["content"] == QUESTION
    [use] = found.tool_uses
    assert (use.turn, use.name, json.loads(use.arguments), use.result) == (
        1, "terminal", {"command": "wc -l data.csv"}, "12 data.csv",
    )  # fmt: skip
    assert found.messages[-1]["content"] == "It has 12 lines."
    assert (found.turns_used, found.stop_reason, str(found.failure)) == (2, "natural", "verifier/no_score")
    assert groups[0].tools == ("terminal",)
    assert [schema["function"]["name"] for schema in groups[0].tool_schemas] == ["terminal"] or name.endswith(".json")


def test_openai_conversations_with_the_same_prompt_are_one_group(out: Path) -> None:
    _, [first, second] = imported(out, "openai_finetuning.jsonl")
    assert [rollout.score for rollout in first.rollouts] == [None, 0.0]
    assert [rollout.index for rollout in first.rollouts] == [0, 1]
    assert second.scores == [1.0]


def test_logged_openai_calls_are_joined_by_what_they_continue(out: Path) -> None:
    _, [one] = imported(out, "openai_logged.jsonl")
    assert [rollout.turns_used for rollout in one.rollouts] == [2, 1]
    assert [rollout.stop_reason for rollout in one.rollouts] == ["natural", "length"]
    assert one.rollouts[0].usage.prompt_tokens == 110


def test_reasoning_is_kept(out: Path) -> None:
    assert only(imported(out, "anthropic.jsonl")[1]).messages[2]["reasoning_content"] == "I count them."
    assert only(imported(out, "otel.jsonl")[1]).messages[2]["reasoning_content"] == "I count them."


def test_a_claude_code_session_keeps_the_results_of_parallel_calls(out: Path) -> None:
    _, [session, subagent] = imported(out, "claude_code.jsonl")
    [main] = session.rollouts
    assert roles(main) == "user assistant tool tool assistant"
    assert [use.call_id for use in main.tool_uses] == ["toolu_1", "toolu_2"]
    assert main.messages[1]["content"] == "I look."
    assert main.usage.prompt_tokens == 208
    assert roles(subagent.rollouts[0]) == "user assistant"
    assert subagent.rollouts[0].metadata["trace"]["sidechain"] is True


def test_attributes_with_an_index_are_read(out: Path) -> None:
    found = only(imported(out, "otel_older.jsonl")[1])
    assert roles(found) == "user assistant"
    assert found.stop_reason == "max_turns"


def test_a_harbor_trial_has_the_reward_beside_it(out: Path) -> None:
    report, groups = imported(out, "harbor_job", group_by="task_name")
    found = only(groups)
    assert found.score == 1.0
    assert groups[0].item_id == "count-lines"
    assert sum(found.sequences[0].mask) == 7
    assert [Path(name).name for name in report.not_recognized] == ["result.json"]


def test_a_score_is_taken_from_the_named_field(out: Path) -> None:
    assert only(imported(out, "otel.jsonl", score="scores.correct")[1]).score == 1.0
    assert only(imported(out, "langfuse_traces.json", score="scores.correct")[1]).score == 1.0
    assert only(imported(out, "langsmith.jsonl", score="scores.correctness")[1]).score == 1.0


def test_groups_are_formed_by_a_field(out: Path) -> None:
    report, groups = imported(out, "langfuse.jsonl", "langsmith.jsonl", group_by="metadata.task")
    assert [(one.item_id, len(one.rollouts)) for one in groups] == [("count-lines", 2)]
    assert report.without_key == 0


def test_each_trace_can_be_its_own_group(out: Path) -> None:
    _, groups = imported(out, "openai_logged.jsonl", group_by="trace")
    assert [len(one.rollouts) for one in groups] == [1, 1]
    assert len({one.id for one in groups}) == 2
    assert len({one.item_id for one in groups}) == 1


def conversations(path: Path, count: int) -> Path:
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    rows = ({"messages": [{**said[0], "content": f"task {number}"}, said[1]]} for number in range(count))
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_the_split_depends_on_the_item_alone(out: Path, tmp_path: Path) -> None:
    all_of_them = imported(out, str(conversations(tmp_path / "a.jsonl", 400)), eval_share=0.25)[1]
    some = imported(out, str(conversations(tmp_path / "b.jsonl", 40)), eval_share=0.25)[1]
    split = {one.item_id: one.split for one in all_of_them}
    assert {one.item_id: one.split for one in some}.items() <= split.items()
    assert 60 < list(split.values()).count("eval") < 140


def test_secrets_are_redacted_and_reported(out: Path) -> None:
    report, _ = imported(out, "claude_code.jsonl")
    written = out.read_text()
    assert "api03" not in written and "hunter2pass" not in written and "ghp_" not in written
    assert "ANTHROPIC_API_KEY=[redacted Anthropic key]" in written
    found = report.secrets.as_dict()
    assert found["Anthropic key"] == {
        "distinct": 1,
        "occurrences": 2,
        "where": {"tool results": 1, "answers": 1},
        "for_instance": ["claude_code.jsonl:10", "claude_code.jsonl:11"],
    }
    assert sorted(found) == ["Anthropic key", "GitHub token", "password in a URL"]


def test_secrets_can_be_kept(out: Path) -> None:
    report, _ = imported(out, "claude_code.jsonl", keep_secrets=True)
    assert "hunter2pass" in out.read_text()
    assert not report.secrets.as_dict()


def documents(tmp_path: Path, *rollouts: Rollout) -> Path:
    path = tmp_path / "documents.jsonl"
    made = group(*rollouts)
    path.write_text("".join(f"{json.dumps(atif.document(made, one))}\n" for one in rollouts))
    return path


def test_exported_documents_come_back_as_the_same_group(out: Path, tmp_path: Path) -> None:
    path = documents(tmp_path, rollout(index=1, score=0.0), rollout())
    [back] = imported(out, str(path))[1]
    assert back == group(rollout(), rollout(index=1, score=0.0))


def test_a_secret_takes_the_token_ids_with_it(out: Path, tmp_path: Path) -> None:
    said = [*rollout().messages[:-1], {"role": "assistant", "content": "AKIA0123456789ABCDEF is the key."}]
    report, [back] = imported(out, str(documents(tmp_path, rollout(messages=said))))
    assert report.without_tokens == 1
    assert back.rollouts[0].sequences == ()
    assert back.rollouts[0].messages[-1]["content"] == "[redacted AWS key id] is the key."


def test_malformed_lines_are_named_and_the_others_imported(out: Path, tmp_path: Path) -> None:
    path = conversations(tmp_path / "a.jsonl", 2)
    path.write_text('{"messages": \n' + path.read_text() + '[1]\n{"messages": [{"role": "robot"}]}\n{"messages": []}')
    report, groups = imported(out, str(path))
    assert len(groups) == 2
    assert report.malformed == 4
    assert [error.partition(":")[2].partition(":")[0] for error in report.errors] == ["1", "4", "5", "6"]
    assert "a message has the role 'robot'" in report.errors[2]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("not JSON\n", "no format was recognized in"),
        ('{"a": 1}\n', "no format was recognized in"),
        ('{"messages": [{"role": "user", "content": 3}]}\n', "1 of 1 records are malformed"),
    ],
)
def test_a_file_without_a_trace_is_an_error(out: Path, tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(ConfigError, match=told):
        imported(out, str(tmp_path / "a.jsonl"))
    assert not list(tmp_path.glob("*groups*"))


def test_the_output_is_not_replaced_unasked(out: Path) -> None:
    out.write_text("")
    with pytest.raises(ConfigError, match="pass --overwrite"):
        import_groups([FIXTURES / "otel.jsonl"], out)


@pytest.mark.parametrize(
    "record",
    [
        {"messages": 3},
        {"request": {"messages": [{"role": "user", "content": []}]}, "response": {"type": "message", "content": 3}},
        {"type": "assistant", "sessionId": "s", "uuid": "u", "message": {"content": [3, None, {"type": []}]}},
        {"resourceSpans": [{"scopeSpans": [{"spans": [{"attributes": [{"key": 3, "value": []}], "events": [1]}]}]}]},
        {"traceId": "t", "type": "GENERATION", "input": [[3]], "output": {"choices": [3]}},
        {"run_type": "llm", "inputs": {"messages": [[3]]}, "outputs": {"generations": [[]]}, "extra": []},
        {"schema_version": "ATIF-v1.8", "steps": [{"source": "agent", "message": {}}], "agent": 3, "extra": 3},
    ],
)
def test_a_record_of_the_wrong_shape_does_not_stop_the_others(
    out: Path, tmp_path: Path, record: Mapping[str, Any]
) -> None:
    good = FIXTURES / "openai_finetuning.jsonl"
    (tmp_path / "bad.jsonl").write_text(json.dumps(record) + "\n")
    report, groups = imported(out, str(tmp_path / "bad.jsonl"), str(good))
    assert len(groups) >= 2
    assert report.records == 3 + bool(report.files.total() - 1)


def test_a_whole_anthropic_conversation_is_one_trace(out: Path, tmp_path: Path) -> None:
    said = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": [{"type": "text", "text": "12"}]}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"system": "Be brief.", "messages": said}) + "\n")
    report, groups = imported(out, str(tmp_path / "a.jsonl"))
    assert report.files == {"anthropic": 1}
    assert roles(only(groups)) == "system user assistant"
