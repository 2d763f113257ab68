import json
import os
import time
from dataclasses import replace
from typing import Any

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.process_identity import ProcessIdentity
from hermes_rl.orchestration.reconciler.unit import UnitState
from hermes_rl.orchestration.run_state import Phase, read_state
from hermes_rl.orchestration.status.status import status
from hermes_rl.orchestration.status.status_cache import THROTTLE_SECONDS
from tests.support.recorded_runs import DEAD, make_run, run_file, write_environment_lines, write_steps

MINUTE = 60.0


def test_a_running_run_is_told_whole() -> None:
    places = make_run(age=1800)
    write_steps(places, 20)
    told = status("r1")
    assert (told["status"], told["environment"], told["preset"]) == ("running", "words", "laptop")
    assert told["running_time_minutes"] == pytest.approx(30, abs=0.1)
    assert told["metrics"]["step"] == 20
    assert list(told["processes"]) == ["api", "trainer", "env"]
    assert told["logs"]["env"].endswith("logs/rl_training/env_r1.log")
    assert (told["stalled"], told["ended"], told["wandb_name"]) == (None, False, "r1")
    assert json.loads(json.dumps(told)) == told


def test_each_environment_is_told_with_its_part() -> None:
    make_run(file=run_file("r1", ("a", "b"), evaluation_only=("b",)))
    told = status("r1")
    assert told["environment"] == "a, b"
    assert [(one["name"], one["part"], one["evaluation_only"]) for one in told["environments"]] == [
        ("a", "env-a", False),
        ("b", "env-b", True),
    ]


def test_a_failed_run_tells_its_error() -> None:
    make_run(phase=Phase.FAILED, reason="trainer: it ended 6 times")
    told = status("r1")
    assert (told["status"], told["error"], told["ended"]) == ("failed", "trainer: it ended 6 times", True)


def test_a_run_that_is_not_begun_shows_its_parts_waiting() -> None:
    make_run(phase=None, by=ProcessIdentity.from_pid(os.getpid()), age=1)
    told = status("r1")
    assert told["status"] == "starting"
    assert {name: part["status"] for name, part in told["processes"].items()} == {
        "api": "waiting",
        "trainer": "waiting",
        "env": "waiting",
    }


def test_a_stall_is_told_with_the_log_to_look_at() -> None:
    places = make_run(age=7200)
    write_steps(places, 5, last_at=time.time() - 1200)
    stalled = status("r1")["stalled"]
    assert (stalled["kind"], stalled["look_at"]) == ("no_step", str(places.log("env")))
    assert stalled["minutes"] == pytest.approx(20, abs=0.2)


def test_a_run_whose_total_is_left_open_has_the_trainers_own() -> None:
    make_run(file=run_file("r1").model_copy(update={"tinker": {}}))
    assert status("r1")["metrics"]["total_steps"] == 2500


def check(now: float) -> dict[str, Any]:
    return status("r1", use_cache=True, now=now)


def test_who_asks_again_soon_is_told_the_numbers_of_the_last_time() -> None:
    now = time.time()
    places = make_run(now=now, said_at=now + 3600)
    write_steps(places, 3, last_at=now)
    first = check(now)
    write_steps(places, 9, last_at=now)
    again = check(now + 10 * MINUTE)
    assert (first["from_record"], first["metrics"]["step"], first["next_check_in_seconds"]) == (
        False,
        3,
        THROTTLE_SECONDS,
    )
    assert (again["from_record"], again["metrics"]["step"]) == (True, 3)
    assert again["next_check_in_seconds"] == THROTTLE_SECONDS - 600
    assert again["status"] == "running"


def test_after_half_an_hour_the_numbers_are_new() -> None:
    now = time.time()
    places = make_run(now=now, said_at=now + 3600)
    write_steps(places, 3, last_at=now)
    check(now)
    write_steps(places, 9, last_at=now + THROTTLE_SECONDS)
    later = check(now + THROTTLE_SECONDS)
    assert (later["from_record"], later["metrics"]["step"]) == (False, 9)


def test_without_the_cache_every_answer_is_fresh() -> None:
    places = make_run()
    check(time.time())
    write_steps(places, 4)
    told = status("r1")
    assert (told["metrics"]["step"], told["from_record"], told["next_check_in_seconds"]) == (4, False, 0)


def happened(places_state: Any, what: str, now: float) -> None:
    """Something that must be told at once."""
    path = places_state.state
    state = read_state(path)
    assert state is not None
    trainer = state.parts["trainer"]
    match what:
        case "a crash":
            parts = {**state.parts, "trainer": replace(trainer, state=UnitState.EXITED, process=None, exit_code=1)}
            state = replace(state, phase=Phase.FAILED, supervisor=None, parts=parts, changed_at=now)
        case "a finish":
            state = replace(state, phase=Phase.FINISHED, supervisor=None)
        case "a stop":
            state = replace(state, phase=Phase.STOPPING)
        case "a restart":
            state = replace(state, parts={**state.parts, "trainer": replace(trainer, restarts=1)})
        case "a dead part":
            state = replace(state, parts={**state.parts, "trainer": replace(trainer, process=DEAD)})
        case "a dead supervisor":
            state = replace(state, supervisor=DEAD)
        case "a frozen supervisor":
            state = replace(state, said_at=now - 3600)
        case "a stall":
            write_steps(places_state, 4, last_at=now - 3600)
            state = replace(state, changed_at=now - 3600)
    state.write(path)


@pytest.mark.parametrize(
    ("what", "word"),
    [
        ("a crash", "it was running and is failed"),
        ("a finish", "it was running and is finished"),
        ("a stop", "it was running and is stopping"),
        ("a restart", "trainer was restarted once"),
        ("a dead part", "trainer exited (code unknown)"),
        ("a dead supervisor", "it was running and is recovering"),
        ("a frozen supervisor", ""),
        ("a stall", "it has stalled"),
    ],
)
def test_news_are_told_at_once_and_fully(what: str, word: str) -> None:
    now = time.time()
    places = make_run(now=now, said_at=now + 3600)
    write_steps(places, 3, last_at=now)
    check(now)
    assert check(now + 1)["from_record"] is True
    happened(places, what, now)
    write_environment_lines(places, "env", {"train/percent_correct": 0.5})
    told = check(now + 2)
    assert (told["from_record"], told["metrics"]["percent_correct"]) == (False, 0.5)
    assert not word or word in told["news"]


def test_each_run_has_its_own_cache() -> None:
    make_run("r1")
    make_run("r2")
    status("r1", use_cache=True)
    assert status("r2", use_cache=True)["from_record"] is False


def test_an_unknown_run_is_never_put_off() -> None:
    for _ in range(3):
        with pytest.raises(ConfigError, match="there is no run"):
            status("r9", use_cache=True)


def test_an_ended_run_is_always_told_whole() -> None:
    make_run(phase=Phase.FINISHED)
    told = [status("r1", use_cache=True) for _ in range(2)]
    assert [(one["from_record"], one["next_check_in_seconds"]) for one in told] == [(False, 0), (False, 0)]


@pytest.mark.parametrize("damage", ["", "{}", "[]", '{"at": "x", "notable": {}, "numbers": {}}', '{"at": 1'])
def test_a_damaged_record_means_a_full_answer(damage: str) -> None:
    places = make_run()
    (places.folder / "told.json").write_text(damage)
    assert status("r1", use_cache=True)["from_record"] is False


def test_a_record_of_the_future_is_no_record() -> None:
    now = time.time()
    make_run(now=now, said_at=now + 86_400)
    check(now + 7200)
    assert check(now)["from_record"] is False


def test_a_record_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    make_run()
    monkeypatch.setattr("hermes_rl.orchestration.status.status_cache.write_document", full)
    assert status("r1", use_cache=True)["status"] == "running"
