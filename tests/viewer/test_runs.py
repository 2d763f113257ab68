"""Runs and evaluations in the viewer: the curve, how a run is now, metrics, and two evaluations compared."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.sinks.tail import MetricRows, MetricsTail
from hermes_rl.viewer.responses.runs import curve, read_steps, step_interval
from hermes_rl.viewer.sources.source import Command, RunAccess
from tests.viewer.recording import Asking, group, rollout, until, viewing, write_lines

STATUS: dict[str, Any] = {
    "status": "running",
    "reason": None,
    "processes": {"trainer": {"status": "ready", "restarts": 1, "problem": None}},
    "metrics": {"step": 3, "total_steps": 100},
    "stalled": {"why": "no group came"},
}


def one_run(folder: Path) -> RunAccess:
    row = {"run_id": "r1", "name": "words r1", "status": "running", "environment": "words", "step": 3}
    return RunAccess(lambda: [row], lambda run_id: folder, lambda run_id: STATUS, lambda run_id: {"preset": "laptop"})


def write_steps(path: Path, count: int) -> None:
    steps = [
        {
            "time": 10.0 * step,
            "step": step,
            "reward/mean": 0.5,
            "reward/std": 0.2,
            "rollouts/scored": 16,
            "groups/total": 2,
            "tokens/per_second": 100.0,
            "text": "no number",
        }
        for step in range(1, count + 1)
    ]
    write_lines(path, *steps)


def test_a_curve_has_a_band_around_the_reward(tmp_path: Path) -> None:
    write_steps(tmp_path / "metrics.jsonl", 3)
    told = curve(read_steps(tmp_path / "metrics.jsonl", MetricsTail().steps))
    assert told["steps"] == [1, 2, 3]
    assert "text" not in told["series"]
    # Sixteen scores with this spread say as much as a hundred of 0 or 1: Wilson's interval of 50 in 100.
    assert told["bands"]["reward/mean"]["low"][0] == pytest.approx(0.4038, abs=1e-4)


@pytest.mark.parametrize(("mean", "spread", "count"), [(0.0, 0.0, 4), (1.0, 0.0, 16), (0.95, 0.22, 16), (0.5, 0.5, 2)])
def test_the_band_of_scores_from_0_to_1_stays_there(mean: float, spread: float, count: float) -> None:
    low, high = step_interval(mean, spread, count, bounded=True)
    assert 0 <= low <= mean <= high <= 1
    assert high - low > 0.05


def test_the_band_of_other_scores_is_not_cut() -> None:
    rows = [{"step": 1, "reward/mean": 0.9, "reward/std": 0.4, "reward/max": 2.0, "rollouts/scored": 4}]
    [high] = curve(MetricRows(rows, rows, 1))["bands"]["reward/mean"]["high"]
    assert high == pytest.approx(0.9 + 1.96 * 0.4 / 2)


def test_a_long_curve_is_thinned_and_keeps_its_end(tmp_path: Path) -> None:
    write_steps(tmp_path / "metrics.jsonl", 2_501)
    told = curve(read_steps(tmp_path / "metrics.jsonl", MetricsTail().steps))
    assert len(told["steps"]) <= 1_000
    assert (told["steps"][-1], told["every"]) == (2_501, 3)


def test_a_run_that_has_measured_nothing_has_an_empty_curve(tmp_path: Path) -> None:
    assert curve(read_steps(tmp_path / "metrics.jsonl", MetricsTail().steps))["steps"] == []


def test_a_run_is_told_live(tmp_path: Path) -> None:
    write_steps(tmp_path / "metrics.jsonl", 3)
    with viewing("r1", runs=one_run(tmp_path)) as ask:
        told = ask("/api/s/run-r1/live")
    assert (told["state"], told["step"], told["total_steps"], told["stalled"]) == ("running", 3, 100, "no group came")
    assert told["parts"][0]["name"] == "trainer"
    assert told["groups_per_minute"] == 12.0
    assert told["tokens_per_second"] == 100.0


def test_a_run_without_groups_is_no_error(tmp_path: Path) -> None:
    with viewing("r1", runs=one_run(tmp_path)) as ask:
        [source] = ask("/api/home")["sources"]
        assert (source["state"], source["problem"]) == ("running", "no groups yet")
        told = ask("/api/s/run-r1")
        assert (told["counts"]["rollouts"], told["config"]) == (0, {"preset": "laptop"})
        assert ask("/api/s/run-r1/groups") == {"rows": [], "next": None, "total": 0}


def evaluation(folder: Path, *scores: float, **fields: Any) -> Path:
    folder.mkdir()
    write_lines(folder / "groups.jsonl", *(group(item, rollout(0, score)) for item, score in enumerate(scores)))
    metrics = {"eval/mean_reward": 0.5, "eval/pass@1": 0.5, "eval/pass@1/low": 0.25, "eval/pass@1/high": 0.75}
    report = {"metrics": metrics, "samples": len(scores), "seconds": 3.5, "task": "words", "settings": {"eval_size": 8}}
    (folder / "metrics.json").write_text(json.dumps(report | fields))
    return folder


def test_an_evaluation_tells_its_metrics_with_intervals(tmp_path: Path) -> None:
    with viewing(evaluation(tmp_path / "one", 0.0, 1.0)) as ask:
        told = ask(f"/api/s/{ask.source()}/metrics")
        assert {"name": "eval/pass@1", "value": 0.5, "low": 0.25, "high": 0.75} in told["metrics"]
        assert (told["seconds"], told["task"]) == (3.5, "words")
        assert ask(f"/api/s/{ask.source()}")["config"] == {"eval_size": 8}


def test_two_evaluations_are_compared_item_by_item(tmp_path: Path) -> None:
    evaluation(tmp_path / "a", *[0.0] * 12)
    evaluation(tmp_path / "b", *[0.0, *[1.0] * 11])
    with viewing(tmp_path / "a", tmp_path / "b") as ask:
        first, second = (source["id"] for source in ask("/api/home")["sources"])
        until(lambda: _whole(ask, first) and _whole(ask, second))
        told = ask(f"/api/compare?a={first}&b={second}")
    mean = told["metrics"][0]
    assert (mean["significant"], mean["a"]["value"], round(mean["difference"], 3)) == (True, 0.0, 0.917)
    assert mean["low"] > 0
    assert told["items"][0]["b"] - told["items"][0]["a"] == 1.0
    assert told["items"][0]["title"].startswith("question")
    assert [one["name"] for one in told["metrics"]] == ["mean reward", "eval/pass@1"]


def test_evaluations_that_are_read_whole_at_once_are_not_said_to_be_read_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_rl.viewer.indexers.MAX_PROCESSES", 0)
    evaluation(tmp_path / "a", 0.0, 1.0)
    evaluation(tmp_path / "b", 1.0, 1.0)
    with viewing(tmp_path / "a", tmp_path / "b") as ask:
        sources = ask("/api/home")["sources"]
        told = ask(f"/api/compare?a={sources[0]['id']}&b={sources[1]['id']}")
    assert [source["rollouts"] for source in sources] == [2, 2]
    assert (told["a"]["indexing"], told["b"]["indexing"]) == (None, None)


def test_an_evaluation_does_not_wait_for_others_that_are_only_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_rl.viewer.indexers.MAX_PROCESSES", 1)
    monkeypatch.setattr("hermes_rl.viewer.indexers.FOLLOW_SECONDS", 10_000.0)
    names = ("a", "b", "c")
    for name in names:
        evaluation(tmp_path / name, *[0.5] * 60)
    with viewing(*(tmp_path / name for name in names)) as ask:
        ids = [source["id"] for source in ask("/api/home")["sources"]]
        until(lambda: all(_whole(ask, name) for name in ids))
        told = ask(f"/api/compare?a={ids[1]}&b={ids[2]}")
    assert (told["a"]["indexing"], told["b"]["indexing"]) == (None, None)


def test_a_comparison_names_the_settings_that_differ_and_those_that_are_equal(tmp_path: Path) -> None:
    source = {"environment": "words", "environment_hash": "h", "dataset_hash": "d", "config_hash": "c"}
    shared = {"samples_per_item": 2, "provenance": {**source, "model": "m"}}
    prompts = (
        {"system_prompt": "be short", "max_token_length": 64},
        {"system_prompt": "think", "max_token_length": 64},
    )
    evaluation(tmp_path / "cool", 0.0, generation_parameters={"temperature": 0}, settings=prompts[0], **shared)
    evaluation(tmp_path / "warm", 1.0, generation_parameters={"temperature": 1}, settings=prompts[1], **shared)
    with viewing(tmp_path / "cool", tmp_path / "warm") as ask:
        first, second = (source["id"] for source in ask("/api/home")["sources"])
        told = ask(f"/api/compare?a={first}&b={second}")
    assert [(one["name"], one["a"], one["b"]) for one in told["differences"]] == [
        ("temperature", 0, 1),
        ("system_prompt", "be short", "think"),
    ]
    assert {"name": "max tokens", "value": 64} in told["same"]
    assert {"name": "model", "value": "m"} in told["same"]


def test_files_of_groups_are_compared_by_what_their_records_say(tmp_path: Path) -> None:
    sampled = [{"tokens": [1], "mask": [1], "logprobs": [0.0], "versions": [1], "sampling": {"temperature": 0.5}}]
    write_lines(tmp_path / "a.jsonl", group(0, rollout(0, 1.0, sequences=sampled), rollout(1, None)))
    write_lines(tmp_path / "b.jsonl", group(0, rollout(0, 1.0), split="eval"))
    with viewing(tmp_path / "a.jsonl", tmp_path / "b.jsonl") as ask:
        first, second = (source["id"] for source in ask("/api/home")["sources"])
        told = ask(f"/api/compare?a={first}&b={second}")
    found = {one["name"]: (one["a"], one["b"]) for one in told["differences"]}
    assert found == {"split": ("train", "eval"), "samples per item": (2, 1), "temperature": (0.5, 1.0)}
    assert "1 rollout has no score in a.jsonl; its mean is biased unless that is random" in told["remarks"]


def test_the_logs_of_a_run_are_read_by_component(tmp_path: Path) -> None:
    runs = replace(
        one_run(tmp_path), logs=lambda _: ["trainer", "api"], log=lambda _, part, lines: f"{lines} lines of {part}"
    )
    with viewing("r1", runs=runs) as ask:
        assert ask("/api/s/run-r1/logs")["text"] == "200 lines of trainer"
        told = ask("/api/s/run-r1/logs?part=api&lines=5")
        assert (told["parts"], told["text"]) == (["trainer", "api"], "5 lines of api")
        ask("/api/s/run-r1/logs?part=..%2fsecret", 404)


def test_the_next_commands_of_a_run_are_those_of_its_access(tmp_path: Path) -> None:
    runs = replace(one_run(tmp_path), commands=lambda run_id: [Command("Stop it", f"hermes-rl run stop {run_id}")])
    with viewing("r1", runs=runs) as ask:
        assert ask("/api/s/run-r1/commands")["commands"] == [{"what": "Stop it", "line": "hermes-rl run stop r1"}]


def test_the_next_commands_of_a_file_name_it_as_a_shell_needs_it(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "two words.jsonl", group())
    with viewing(path) as ask:
        lines = [one["line"] for one in ask(f"/api/s/{ask.source()}/commands")["commands"]]
    assert f"hermes-rl rescore '{path}'" in lines


def test_what_has_no_item_in_common_is_not_tested(tmp_path: Path) -> None:
    evaluation(tmp_path / "a", 1.0)
    (tmp_path / "b").mkdir()
    write_lines(tmp_path / "b" / "groups.jsonl", group(77, rollout(0, 0.5)))
    with viewing(tmp_path / "a", tmp_path / "b") as ask:
        first, second = (source["id"] for source in ask("/api/home")["sources"])
        [mean] = ask(f"/api/compare?a={first}&b={second}")["metrics"]
    assert (mean["significant"], mean["difference"]) == (False, None)
    assert "common" in mean["note"]


def _whole(ask: Asking, name: str) -> bool:
    return ask(f"/api/s/{name}")["indexing"] is None


def test_the_audit_gap_has_its_measured_interval() -> None:
    rows: list[dict[str, Any]] = [
        {"step": 1, "audit/gap": 0.5, "audit/gap_low": 0.25, "audit/gap_high": 0.75},
        {"step": 2},
    ]
    told = curve(MetricRows(rows, rows, 1))
    assert told["bands"] == {"audit/gap": {"low": [0.25, None], "high": [0.75, None]}}
