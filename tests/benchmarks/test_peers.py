"""The peers benchmark: the model does what a prompt asks of it, and our own driver's records say what became of it."""

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import table
from benchmarks.peers.measures import PEERS, Measure, Model, lost, measured
from benchmarks.peers.run import goals
from benchmarks.peers.table import told
from benchmarks.peers.work import FAULTS, Job, Recording, RewardBrokeError, ToolBrokeError, called, name_in


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model("null") as running:
        yield running


def ask(model: Model, name: str, results: int = 0) -> Any:
    """The model's message to a conversation with so many tool results."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"#{name}# go"}]
    messages += [{"role": "tool", "tool_call_id": "call_1", "content": "hello"}] * results
    body = json.dumps({"model": "null", "messages": messages}).encode()
    request = urllib.request.Request(f"{model.url}/chat/completions", data=body, method="POST")
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.loads(response.read())["choices"][0]["message"]


def test_the_model_plays_the_recording_by_the_number_of_tool_results(model: Model) -> None:
    turns = Recording.named("null").turns
    said = [ask(model, "1/fine", results) for results in range(len(turns) + 1)]
    commands = [json.loads(one["tool_calls"][0]["function"]["arguments"])["command"] for one in said[:-1]]
    assert commands == [turn.command for turn in turns]
    assert said[-1]["content"] == Recording.named("null").final


def test_a_fault_that_comes_once_is_gone_at_the_second_request(model: Model) -> None:
    with pytest.raises(urllib.error.HTTPError, match="500"):
        ask(model, "2/500_once", results=2)
    assert ask(model, "2/500_once", results=2)["tool_calls"]


def test_a_fault_that_stays_stays(model: Model) -> None:
    for _ in range(2):
        with pytest.raises(urllib.error.HTTPError, match="500"):
            ask(model, "3/500", results=2)


def test_a_fault_is_not_met_before_its_turn(model: Model) -> None:
    assert ask(model, "4/garbage", results=1)["tool_calls"]
    with pytest.raises(json.JSONDecodeError):
        ask(model, "4/garbage", results=2)


def test_a_request_that_has_no_answer_yet_is_counted_as_waiting() -> None:
    with Model("null") as slow, ThreadPoolExecutor() as pool:
        slow.set_delay(1.0)
        asking = pool.submit(ask, slow, "6/fine", 1)
        while not slow.waiting():
            assert not asking.done()
        asking.result()
        assert slow.waiting() == 0


def test_the_model_counts_what_it_answered_and_forgets_it_when_asked(model: Model) -> None:
    model.stats()
    ask(model, "5/fine")
    assert model.stats()["turns"] == 1
    assert model.stats()["turns"] == 0


def test_the_tool_gives_what_was_recorded_and_breaks_where_it_is_told_to() -> None:
    recorded = Recording.named("recorded")
    assert [called(turn.command) for turn in recorded.turns] == [
        recorded.results[turn.command] for turn in recorded.turns
    ]
    with pytest.raises(ToolBrokeError):
        called("break")


def test_the_reward_is_right_for_the_recorded_end_alone_and_breaks_where_it_is_told_to() -> None:
    recording = Recording.named("null")
    assert recording.score("#1/fine# go", "done") == 1.0
    assert recording.score("#1/fine# go", "else") == 0.0
    with pytest.raises(RewardBrokeError):
        recording.score("#1/reward# go", "done")


def test_a_job_has_as_many_rollouts_of_each_kind() -> None:
    job = Job("", "null", 2 * (len(FAULTS) + 1), 4, "", faults=True)
    kinds = [name.partition("/")[2] for name in job.names]
    assert {kind: kinds.count(kind) for kind in kinds} == dict.fromkeys(("fine", *FAULTS), 2)
    assert [name_in(job.prompt(name)) for name in job.names] == job.names


def test_what_no_record_has_is_lost() -> None:
    measure = Measure("one", "null", 4, 4)
    assert lost(measure, {"outcomes": {"fine": {"right": 1, "unscored": 1}}}) == {"fine": 2}


@pytest.mark.slow
def test_of_our_rollouts_none_is_scored_for_a_fault_of_the_world_and_none_is_lost_or_leaked() -> None:
    kinds = len(FAULTS) + 1
    asked = Measure("faults", "null", kinds, kinds, faults=True, patience=6.0)
    run = measured(PEERS["hermes-rl"], sys.executable, asked)
    assert run.get("finished"), run
    for kind in ("500", "hangup", "stall", "garbage", "reward"):
        assert run["outcomes"][kind] == {"unscored": 1}
    # On a machine so slow that its patience ends, others have no score either; none has a wrong one.
    assert not any("wrong" in outcome for outcome in run["outcomes"].values())
    assert run["lost"] == dict.fromkeys(("fine", *FAULTS), 0)
    assert run["open_sandboxes"] == 0


def test_a_driver_that_says_nothing_is_a_result_that_says_so() -> None:
    run = measured(PEERS["inspect"], sys.executable, Measure("busy_64", "null", 1, 1))
    assert "inspect_ai" in run["said"]


def test_the_goals_are_to_be_ahead_of_each_framework() -> None:
    rows = {"busy_64": {"bare": {}, "hermes-rl": figure(500.0, 0.4), "inspect": figure(80.0, 12.0)}}
    found = goals(rows)
    assert [goal["met"] for goal in found.values()] == [True, True]
    assert not any("bare" in name for name in found)


def figure(turns: float, cpu: float) -> dict[str, Any]:
    return {"turns_per_second": turns, "cpu_ms_per_turn": cpu}


def test_a_framework_that_failed_is_in_the_table_with_its_error() -> None:
    failed = {"asked": asked(), "figures": {}, "runs": {"inspect": [{"error": "TimeoutExpired: late"}]}}
    assert "failed: TimeoutExpired: late" in told(results({"busy_64": failed}))


def test_a_score_that_a_fault_made_stands_out_in_the_table() -> None:
    run = {"outcomes": {"500": {"wrong": 4}}, "lost": dict.fromkeys(("fine", *FAULTS), 0), "open_sandboxes": 0}
    run |= {"seconds": 1.0, "version": "1", "settings": "none"}
    faults = {"asked": asked(), "figures": {}, "runs": {"bare": [], "atropos": [run]}}
    assert "**scored wrong**" in told(results({"faults": faults}))


def test_the_page_has_the_newest_tables_alone_between_its_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "peers.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    monkeypatch.setattr(table, "PAGE", page)
    table.write(results({}))
    once = page.read_text()
    table.write(results({}))
    assert page.read_text() == once
    assert once.startswith("before")
    assert once.endswith("after\n")
    assert "old" not in once
    assert json.loads(page.with_suffix(".json").read_text()) == results({})


def asked() -> dict[str, Any]:
    return {"recording": "null", "in_flight": 4, "rollouts": 44, "delay": 0.0, "patience": 4.0, "repeats": 1}


def results(measures: dict[str, Any]) -> dict[str, Any]:
    machine = {"cores": 2, "cpu": "any", "memory_gb": 1.0, "kernel": "6", "python": "3.11"}
    return {"size": "small", "date": "today", "machine": machine, "measures": measures}
