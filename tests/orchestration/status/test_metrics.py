import time

import pytest

from hermes_rl.orchestration.status.metrics import environment_metrics, finite_number, latest_metrics, read_run_metrics
from tests.support.recorded_runs import make_run, run_file, write_environment_lines, write_steps


def test_a_run_that_has_not_begun_to_learn_is_at_step_0() -> None:
    places = make_run()
    metrics = latest_metrics(read_run_metrics(places, run_file("r1")), 100)
    assert (metrics["step"], metrics["total_steps"], metrics["reward_mean"]) == (0, 100, None)


def test_the_newest_numbers_are_told_by_the_seeds_names() -> None:
    places = make_run()
    write_steps(places, 40, seconds=30)
    write_environment_lines(
        places,
        "env",
        {"train/percent_correct": 0.25, "train/scored": 8},
        {"eval/pass@1": 0.5, "eval/mean_reward": 0.6},
        {"train/percent_correct": 0.75, "train/scored": 8},
    )
    metrics = latest_metrics(read_run_metrics(places, run_file("r1")), 100)
    expected = {
        "step": 40,
        "total_steps": 100,
        "reward_mean": 1.0,
        "percent_correct": 0.75,
        "eval_percent_correct": 0.5,
        "eval_reward_mean": 0.6,
        "learning_rate": 4e-5,
        "seconds_per_step": 30.0,
        "minutes_left": 30.0,
    }
    assert {name: metrics[name] for name in expected} == expected


def test_several_environments_have_numbers_each_and_together() -> None:
    file = run_file("r1", ("a", "b", "held"), evaluation_only=("held",))
    places = make_run(file=file)
    write_steps(places, 2, **{"reward/environment/a": 0.2, "reward/environment/b": 0.8})
    write_environment_lines(places, "env-a", {"train/percent_correct": 0.0, "train/scored": 30})
    write_environment_lines(places, "env-b", {"train/percent_correct": 1.0, "train/scored": 10})
    write_environment_lines(places, "env-held", {"eval/pass@1": 0.125})
    measured = read_run_metrics(places, file)
    assert latest_metrics(measured, 2)["percent_correct"] == 0.25
    assert environment_metrics(measured, "a")["reward_mean"] == 0.2
    assert environment_metrics(measured, "b")["percent_correct"] == 1.0
    assert environment_metrics(measured, "held")["eval_percent_correct"] == 0.125


def test_the_files_of_a_resumed_environment_are_one_story() -> None:
    places = make_run()
    now = time.time()
    write_environment_lines(places, "env", {"train/percent_correct": 0.9, "time": now}, file="words-zz")
    write_environment_lines(places, "env", {"train/percent_correct": 0.1, "time": now - 60}, file="words-aa")
    write_environment_lines(places, "env", {"train/percent_correct": 0.2, "time": now - 30}, file="words-zzz")
    assert latest_metrics(read_run_metrics(places, run_file("r1")), 1)["percent_correct"] == 0.9


def test_an_evaluation_is_of_the_step_that_was_last_when_it_ended() -> None:
    places = make_run()
    now = time.time()
    write_steps(places, 10, seconds=10, last_at=now)
    lines = ({"eval/pass@1": 0.1, "time": now - 1000}, {"eval/pass@1": 0.2, "time": now - 45})
    write_environment_lines(places, "env", *lines)
    found = read_run_metrics(places, run_file("r1")).evaluations()
    assert [(one.step, one.percent_correct) for one in found] == [(0, 0.1), (5, 0.2)]


def test_the_median_step_does_not_count_the_time_in_which_a_run_was_stopped() -> None:
    places = make_run()
    write_steps(places, 5, seconds=10, last_at=time.time() - 90_000)
    with (places.folder / "metrics.jsonl").open("a") as file:
        file.writelines(f'{{"time": {time.time() + 10 * step}, "step": {step}}}\n' for step in range(6, 10))
    assert read_run_metrics(places, None).step_seconds == pytest.approx(10)


@pytest.mark.parametrize("damage", [b"not json\n", b'{"step": "three"}\n', b"\xff\xfe\n"])
def test_a_damaged_file_is_told_and_raises_nothing(damage: bytes) -> None:
    places = make_run()
    (places.folder / "metrics.jsonl").write_bytes(damage)
    measured = read_run_metrics(places, run_file("r1"))
    assert measured.steps == ()
    assert "metrics.jsonl, line 1 is not a metrics line" in measured.problems[0]


@pytest.mark.parametrize(
    ("value", "shown"), [(1.5, 1.5), (3, 3), (float("nan"), None), (float("inf"), None), (True, None), ("7", None)]
)
def test_only_numbers_that_json_has_are_numbers(value: object, shown: float | None) -> None:
    assert finite_number(value) == shown


def test_the_minutes_left_count_down_between_two_steps() -> None:
    places = make_run()
    write_steps(places, 40, seconds=30)
    measured = read_run_metrics(places, run_file("r1"))
    last = measured.times[-1]
    # 60 steps of 30 s; a step that takes longer than usual does not shorten the others.
    left = [latest_metrics(measured, 100, last + seconds)["minutes_left"] for seconds in (0, 12, 30, 300)]
    assert left == [30.0, 29.8, 29.5, 29.5]


def test_a_diagnosis_of_an_environment_is_told_until_a_tool_is_called() -> None:
    places = make_run()
    for diagnosis in ("0 tool calls in 8 rollouts: why", None):
        write_environment_lines(places, "env", {"train/diagnosis": diagnosis})
        measured = read_run_metrics(places, run_file("r1"))
        assert environment_metrics(measured, "words")["diagnosis"] == diagnosis


def test_the_last_audit_is_told_with_its_step() -> None:
    places = make_run()
    audit = {"audit/gap": 0.5, "audit/gap_low": 0.25, "audit/gap_high": 0.75, "audit/rollouts": 8, "audit/errors": 1}
    write_steps(places, 2, **audit)
    assert latest_metrics(read_run_metrics(places, run_file("r1")), 2)["audit"] == {
        "step": 2,
        "gap": 0.5,
        "gap_low": 0.25,
        "gap_high": 0.75,
        "rollouts": 8,
        "errors": 1,
    }


def test_a_run_without_audits_tells_of_none() -> None:
    places = make_run()
    write_steps(places, 2)
    assert latest_metrics(read_run_metrics(places, run_file("r1")), 2)["audit"] is None
