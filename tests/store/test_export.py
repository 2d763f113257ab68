"""Rows to train on: only what was scored, nothing of an evaluation, no pair without a difference, no half file."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.errors import ConfigError, Failure, FailureSource
from hermes_rl.core.trajectory import Group, Provenance, Rollout, StopReason
from hermes_rl.store.export import Dpo, ExportedRows, RowWriter, Sft, count_lines, export_groups
from hermes_rl.store.records import RecordWriter, group_to_record

PROVENANCE = Provenance(environment="e", environment_hash="h", model="m", versions={})
TOOLS = (
    {
        "type": "function",
        "function": {"name": "terminal", "parameters": {"properties": {"command": {"type": "string"}}}},
    },
    {"type": "function", "function": {"name": "read_file", "parameters": {"properties": {"path": {"type": "string"}}}}},
)
EXAMPLE = [{"role": "user", "content": "Count a."}, {"role": "assistant", "content": "1"}]
PROMPT = [{"role": "system", "content": "You count."}, *EXAMPLE, {"role": "user", "content": "Count b."}]


def call(name: str, arguments: str, call_id: str = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def rollout(score: float | None, *said: dict[str, Any], text: str = "", **fields: Any) -> Rollout:
    answers = said or ({"role": "assistant", "content": text or f"worth {score}"},)
    return Rollout(
        item_id="i",
        index=0,
        seed=0,
        messages=[*PROMPT, *answers],
        score=score,
        failure=Failure(FailureSource.SANDBOX, "start", "no bwrap") if score is None else None,
        stop_reason=None if score is None else StopReason.NATURAL,
        **{"metadata": {"prompt_length": 4}, **fields},
    )


def group(*rollouts: Rollout, split: str = "train") -> Group:
    return Group(item_id="i", item=1, rollouts=rollouts, provenance=PROVENANCE, tool_schemas=TOOLS, split=split)


def exported(folder: Path, form: RowWriter, *groups: Group) -> tuple[list[dict[str, Any]], ExportedRows]:
    path, out = folder / "groups.jsonl", folder / "rows.jsonl"
    with RecordWriter(path) as writer:
        for one in groups:
            writer.write(group_to_record(one))
    done = export_groups([path], out, form)
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    assert len(rows) == done.rows
    return rows, done


def worth(rows: list[dict[str, Any]]) -> list[float]:
    return [row["score"] for row in rows]


# --- sft ---


def test_a_row_has_the_conversation_and_the_tools(tmp_path: Path) -> None:
    [row], _ = exported(tmp_path, Sft(), group(rollout(1.0, text="2")))
    assert row == {
        "messages": [*PROMPT, {"role": "assistant", "content": "2"}],
        "tools": list(TOOLS),
        "score": 1.0,
        "item_id": "i",
    }


def test_unscored_rollouts_never_become_rows(tmp_path: Path) -> None:
    rows, done = exported(tmp_path, Sft(), group(rollout(None), rollout(0.0), rollout(None)))
    assert worth(rows) == [0.0]
    assert done.left_out == {"rollouts_without_a_score": 2}


@pytest.mark.parametrize("form", [Sft(), Dpo()])
def test_an_evaluation_never_becomes_rows(tmp_path: Path, form: RowWriter) -> None:
    rows, done = exported(tmp_path, form, group(rollout(1.0), rollout(0.0), split="eval"))
    assert (rows, done.left_out) == ([], {"rollouts_of_evaluations": 2})


def test_a_least_score_and_the_best_of_a_group(tmp_path: Path) -> None:
    groups = [group(rollout(0.2), rollout(0.9), rollout(0.7)), group(rollout(0.1), rollout(0.3))]
    assert worth(exported(tmp_path / "a", Sft(min_score=0.3), *groups)[0]) == [0.9, 0.7, 0.3]
    assert worth(exported(tmp_path / "b", Sft(best=True), *groups)[0]) == [0.9, 0.3]
    rows, done = exported(tmp_path / "c", Sft(min_score=0.5, best=True), *groups)
    assert worth(rows) == [0.9]
    assert done.left_out == {"rollouts_below_min_score": 3, "rollouts_not_the_best": 1}


def test_prompt_and_completion_stand_apart_when_asked(tmp_path: Path) -> None:
    [row], _ = exported(tmp_path, Sft(split_prompt=True), group(rollout(1.0, text="2")))
    assert (row["prompt"], row["completion"]) == (PROMPT, [{"role": "assistant", "content": "2"}])
    assert "messages" not in row


def test_worked_examples_stay_unless_they_are_left_out(tmp_path: Path) -> None:
    [row], _ = exported(tmp_path, Sft(examples=False), group(rollout(1.0, text="2")))
    assert row["messages"] == [PROMPT[0], PROMPT[-1], {"role": "assistant", "content": "2"}]


def test_calls_are_objects_and_results_are_named_as_templates_want_them(tmp_path: Path) -> None:
    calls = [call("terminal", '{"command": "ls"}')]
    said = rollout(
        1.0,
        {"role": "assistant", "content": None, "reasoning_content": "I look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "a b"},
        {"role": "assistant", "content": [{"type": "text", "text": "Two"}, {"type": "text", "text": "."}]},
    )
    [row], _ = exported(tmp_path, Sft(), group(said))
    asked, answered, final = row["messages"][4:]
    assert asked["content"] == ""
    assert asked["reasoning_content"] == "I look."
    assert asked["tool_calls"][0]["function"] == {"name": "terminal", "arguments": {"command": "ls"}}
    assert answered == {"role": "tool", "content": "a b", "tool_call_id": "c1", "name": "terminal"}
    assert final == {"role": "assistant", "content": "Two."}


def test_arguments_that_are_no_object_stay_the_models_own_text(tmp_path: Path) -> None:
    calls = [call("terminal", "{broken"), call("terminal", "[1]")]
    [row], _ = exported(tmp_path, Sft(), group(rollout(1.0, {"role": "assistant", "content": "", "tool_calls": calls})))
    assert [one["function"]["arguments"] for one in row["messages"][-1]["tool_calls"]] == ["{broken", "[1]"]


def test_a_record_that_does_not_say_where_its_prompt_ends_has_it_before_the_first_answer(tmp_path: Path) -> None:
    [row], _ = exported(tmp_path, Sft(split_prompt=True), group(rollout(1.0, metadata={})))
    assert row["prompt"] == PROMPT[:2]


def test_a_rollout_that_says_nothing_is_no_row(tmp_path: Path) -> None:
    rows, done = exported(tmp_path, Sft(), group(rollout(1.0, {"role": "tool", "content": "x", "tool_call_id": "c"})))
    assert (rows, done.left_out) == ([], {"rollouts_without_an_answer": 1})


# --- dpo ---


def scores(rows: list[dict[str, Any]]) -> list[tuple[float, float]]:
    return [(row["chosen_score"], row["rejected_score"]) for row in rows]


def test_a_pair_is_the_best_and_the_worst_of_a_group(tmp_path: Path) -> None:
    [row], _ = exported(tmp_path, Dpo(), group(rollout(0.5), rollout(None), rollout(1.0), rollout(0.0)))
    assert row == {
        "prompt": PROMPT,
        "chosen": [{"role": "assistant", "content": "worth 1.0"}],
        "rejected": [{"role": "assistant", "content": "worth 0.0"}],
        "tools": list(TOOLS),
        "chosen_score": 1.0,
        "rejected_score": 0.0,
        "item_id": "i",
    }


def test_all_pairs_are_those_of_different_scores(tmp_path: Path) -> None:
    one = group(rollout(0.5), rollout(1.0), rollout(1.0, text="another"), rollout(0.0))
    rows, _ = exported(tmp_path, Dpo(all_pairs=True), one)
    assert sorted(scores(rows)) == [(0.5, 0.0), (1.0, 0.0), (1.0, 0.0), (1.0, 0.5), (1.0, 0.5)]
    rows, _ = exported(tmp_path / "gap", Dpo(min_gap=0.6, all_pairs=True), one)
    assert scores(rows) == [(1.0, 0.0), (1.0, 0.0)]


@pytest.mark.parametrize("all_pairs", [True, False])
@pytest.mark.parametrize(
    ("rollouts", "reason"),
    [
        pytest.param([rollout(1.0), rollout(1.0, text="other")], "groups_without_a_difference", id="equal scores"),
        pytest.param(
            [rollout(1.0, text="same"), rollout(0.0, text="same")], "groups_without_a_difference", id="same words"
        ),
        pytest.param([rollout(0.4), rollout(0.2)], "groups_without_a_difference", id="gap too small"),
        pytest.param([rollout(0.4)], "groups_with_fewer_than_two_scored", id="one alone"),
    ],
)
def test_there_is_no_pair_without_a_difference(
    tmp_path: Path, rollouts: list[Rollout], reason: str, all_pairs: bool
) -> None:
    rows, done = exported(tmp_path, Dpo(min_gap=0.3, all_pairs=all_pairs), group(*rollouts))
    assert (rows, done.left_out) == ([], {reason: 1})


def test_calls_that_differ_in_their_ids_alone_are_no_difference(tmp_path: Path) -> None:
    def acted(score: float, call_id: str) -> Rollout:
        asked = {"role": "assistant", "content": "", "tool_calls": [call("terminal", "{}", call_id)]}
        return rollout(score, asked, {"role": "tool", "tool_call_id": call_id, "content": "x"})

    rows, _ = exported(tmp_path, Dpo(), group(acted(1.0, "a"), acted(0.0, "b")))
    assert rows == []


def test_rollouts_of_different_prompts_make_no_pair(tmp_path: Path) -> None:
    other = rollout(0.0, metadata={"prompt_length": 3})
    rows, done = exported(tmp_path, Dpo(), group(rollout(1.0), other))
    assert rows == []
    assert done.left_out["pairs_of_different_prompts"] == 1


# --- files ---


def test_several_files_make_one(tmp_path: Path) -> None:
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for score, path in enumerate(files):
        with RecordWriter(path) as writer:
            writer.write(group_to_record(group(rollout(float(score)))))
    seen: list[int] = []
    done = export_groups(files, tmp_path / "out.jsonl", Sft(), on_group=lambda so_far: seen.append(so_far.groups))
    assert (done.rows, done.groups, done.rollouts, seen) == (2, 2, 2, [1, 2])
    assert [count_lines(path) for path in files] == [1, 1]


def test_an_existing_file_is_replaced_only_when_told(tmp_path: Path) -> None:
    exported(tmp_path, Sft(), group(rollout(1.0)))
    with pytest.raises(ConfigError, match="--overwrite"):
        export_groups([tmp_path / "groups.jsonl"], tmp_path / "rows.jsonl", Sft())
    export_groups([tmp_path / "groups.jsonl"], tmp_path / "rows.jsonl", Sft(split_prompt=True), overwrite=True)
    assert b"completion" in (tmp_path / "rows.jsonl").read_bytes()


def test_the_file_that_is_read_is_never_replaced(tmp_path: Path) -> None:
    exported(tmp_path, Sft(), group(rollout(1.0)))
    path = tmp_path / "groups.jsonl"
    with pytest.raises(ConfigError, match="is also an input file"):
        export_groups([path], path, Sft(), overwrite=True)


def test_a_file_that_cannot_be_read_to_its_end_leaves_the_old_rows_and_nothing_else(tmp_path: Path) -> None:
    exported(tmp_path, Sft(), group(rollout(1.0)))
    before = (tmp_path / "rows.jsonl").read_bytes()
    with (tmp_path / "groups.jsonl").open("ab") as file:
        file.write(b"not a group\n")
    with pytest.raises(ConfigError, match="line 2"):
        export_groups([tmp_path / "groups.jsonl"], tmp_path / "rows.jsonl", Sft(), overwrite=True)
    assert (tmp_path / "rows.jsonl").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["groups.jsonl", "rows.jsonl"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.jsonl does not exist"):
        export_groups([tmp_path / "none.jsonl"], tmp_path / "rows.jsonl", Sft())


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    record = group_to_record(group(rollout(1.0, text="x" * 100_000), rollout(0.0, text="y" * 100_000)))
    with RecordWriter(path) as writer:
        for _ in range(80):
            writer.write(record)
    tracemalloc.start()
    done = export_groups([path], tmp_path / "rows.jsonl", Dpo())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (done.rows, path.stat().st_size > 30_000_000) == (80, True)
    assert peak < 10_000_000


@pytest.mark.parametrize("form", [Sft(), Sft(split_prompt=True), Dpo(all_pairs=True)])
def test_the_rows_load_with_datasets_as_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: RowWriter
) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    acted = {"role": "assistant", "content": "", "tool_calls": [call("terminal", '{"command": "ls"}')]}
    read = {"role": "assistant", "content": "", "tool_calls": [call("read_file", '{"path": "f", "limit": 3}')]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "x"}
    groups = [group(rollout(1.0, acted, result), rollout(0.5, read, result), rollout(0.0)) for _ in range(3)]
    rows, _ = exported(tmp_path, form, *groups)
    nested = {"messages", "prompt", "completion", "chosen", "rejected", "tools"} & set(rows[0])
    features = datasets.Features(
        {
            name: datasets.List(datasets.Json())
            if name in nested
            else datasets.Value("string" if name == "item_id" else "float64")
            for name in rows[0]
        }
    )
    loaded = datasets.load_dataset(
        "json",
        data_files=str(tmp_path / "rows.jsonl"),
        split="train",
        features=features,
        cache_dir=str(tmp_path / "cache"),
    )
    assert list(loaded) == rows
