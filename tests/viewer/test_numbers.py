"""The terminal and the viewer say the same of the same file: `process`, `evaluate` and `compare` against the index."""

import json
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl.core.errors import Failure, FailureSource
from hermes_rl.core.group_means import GroupMeans
from hermes_rl.core.trajectory import Group, Provenance, Rollout, StopReason, ToolUse
from hermes_rl.evaluation.metrics import EvaluationCounts
from hermes_rl.rollout.metrics import RolloutCounts
from hermes_rl.store.records import group_to_record
from hermes_rl.viewer.index import aggregates
from hermes_rl.viewer.index.schema import open_in_memory
from hermes_rl.viewer.index.writer import read_facts, write_entries
from hermes_rl.viewer.sources.jsonl import Line, index_entry

Row = tuple[float | None, StopReason, list[tuple[str, bool]]]

SOURCE = Provenance(environment="words", environment_hash="h", model="m", versions={})
SCORES = st.one_of(st.none(), st.sampled_from([0.0, 1.0, 0.125]), st.floats(0, 1, allow_nan=False))
TOOLS = st.lists(st.tuples(st.sampled_from(["terminal", " terminal", "read_file"]), st.booleans()), max_size=3)
ROLLOUTS = st.lists(st.tuples(SCORES, st.sampled_from(StopReason), TOOLS), min_size=1, max_size=5)


def make_group(number: int, rows: Sequence[Row]) -> Group:
    example = {"function": {"name": "terminal", "arguments": "{}"}, "id": "e"}
    return Group(
        item_id=f"item-{number}",
        item={},
        provenance=SOURCE,
        rollouts=tuple(
            Rollout(
                item_id=f"item-{number}",
                index=index,
                seed=index,
                # A worked example of the prompt has a call that nobody made.
                messages=[{"role": "assistant", "content": "", "tool_calls": [example]}],
                score=score,
                # Also a rollout that failed later knows why its agent stopped.
                stop_reason=stop,
                failure=Failure(FailureSource.SANDBOX, "died", "it is gone") if score is None else None,
                tool_uses=tuple(ToolUse(0, "c", name, "{}", "", "no" if failed else None) for name, failed in tools),
            )
            for index, (score, stop, tools) in enumerate(rows)
        ),
    )


def seen_by_viewer(groups: list[Group]) -> dict[str, Any]:
    with closing(open_in_memory()) as index:
        entries = []
        for number, group in enumerate(groups, 1):
            raw = json.dumps(group_to_record(group)).encode() + b"\n"
            entries.append(index_entry(Line(number, 0, len(raw), raw)))
        write_entries(index, entries, done=1)
        facts = read_facts(index)
        listed = GroupMeans(facts["scored_groups"], facts["mean_sum"]).mean
        return {**aggregates.summary(index), "listed_mean": listed, "by_item": aggregates.scores_by_item(index)}


@settings(max_examples=60, deadline=None)
@given(st.lists(ROLLOUTS, min_size=1, max_size=5))
def test_the_viewer_and_the_terminal_agree_on_every_number(
    rows: list[list[Row]],
) -> None:
    groups = [make_group(number, one) for number, one in enumerate(rows)]
    processed = RolloutCounts()
    evaluated = EvaluationCounts(items=[group.item_id for group in groups], samples=1, temperature=1.0, pass_score=1.0)
    for group in groups:
        processed.add(group)
        evaluated.add(group)
    shown = seen_by_viewer(groups)
    terminal, report = processed.summary(), evaluated.metrics(0.0)
    assert [shown["counts"][name] for name in ("groups", "rollouts", "scored")] == [
        terminal[name] for name in ("groups", "rollouts", "scored")
    ]
    assert {one["reason"]: one["count"] for one in shown["stop_reasons"]} == terminal["stop_reasons"]
    assert {one["cause"]: one["count"] for one in shown["failures"]} == terminal["failures"]
    assert sum(one["calls"] for one in shown["tools"]) == terminal["tool_calls"] == report["eval/tool_calls"]
    assert sum(one["errors"] for one in shown["tools"]) == terminal["tool_errors"] == report["eval/tool_errors"]
    means = [terminal["mean_score"], shown["listed_mean"], shown["reward"]["mean"], report["eval/mean_reward"]]
    if terminal["mean_score"] is None:
        assert means == [None] * 4
    else:
        assert means == pytest.approx([means[0]] * 4, abs=1e-12)
        assert shown["reward"]["low"] == report["eval/mean_reward/low"]
        assert shown["reward"]["high"] == report["eval/mean_reward/high"]
    assert shown["by_item"] == {item: scores for item, scores in evaluated.scores.items() if scores}


def test_a_group_with_failed_rollouts_counts_as_much_as_any_other() -> None:
    stop = StopReason.NATURAL
    first = make_group(0, [(0.0, stop, []), (0.0, stop, []), (0.0, stop, []), (None, stop, [])])
    second = make_group(1, [(1.0, stop, []), (1.0, stop, []), (0.0, stop, []), (0.0, stop, [])])
    counts = RolloutCounts()
    for group in (first, second):
        counts.add(group)
    assert counts.mean == seen_by_viewer([first, second])["reward"]["mean"] == 0.25


def test_the_standard_error_is_that_of_the_group_means() -> None:
    means = GroupMeans()
    for scores in ([0.0, 0.0], [1.0], [], [0.5, 0.5]):
        means.add(scores)
    # Means 0, 1 and 0.5: variance 0.25, over three groups.
    assert means.mean == 0.5
    assert means.standard_error == pytest.approx((0.25 / 3) ** 0.5)


def test_a_tool_is_told_from_one_with_a_space_before_its_name() -> None:
    rows = [(1.0, StopReason.NATURAL, [("terminal", False), (" terminal", True)])]
    found = {one["name"]: one["errors"] for one in seen_by_viewer([make_group(0, rows)])["tools"]}
    assert found == {"terminal": 0, " terminal": 1}
