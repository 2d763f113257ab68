"""The referee over a run that is a stand-in: what it writes down of faults that are got over, and of others."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from hermes_rl.core.process_identity import ProcessIdentity
from hermes_rl.orchestration.run_state import Phase, RunState
from tests.chaos.stack.clocks import Clocks
from tests.chaos.stack.referee import Referee, Struck
from tests.chaos.stack.scene import Scene
from tests.chaos.stack.schedule import Fault, Form, Kind
from tests.chaos.trajectory.grounds import Disk

FAULTS = tuple(Fault(number, 0.0, Kind(Form.FORWARD, "api"), 0.05, 90.0) for number in range(2))


class StandIn:
    """A run that is whole; `groups` says how many are in the store, None while it cannot be read.

    `frail` ones fail when their clock has been touched.
    """

    def __init__(self, place: Path, groups: Callable[[], int | None], *, frail: bool = False) -> None:
        self.clocks = Clocks(place)
        self.step = 1
        self._groups, self._frail, self._clock = groups, frail, place / "api.clock"

    @property
    def state(self) -> RunState:
        phase = Phase.FAILED if self._frail and self._clock.exists() else Phase.RUNNING
        return RunState("run", phase, None)

    def await_phase(self, *_phases: Phase, seconds: float) -> None:
        assert seconds > 0

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        groups = self._groups()
        return [] if groups is None else [(groups,)]

    def ask_engine(self, sql: str) -> list[tuple[Any, ...]]:
        return []

    def note(self, _part: str) -> dict[str, Any]:
        return {}

    def living(self, _target: str, _draw: random.Random) -> ProcessIdentity:
        return ProcessIdentity(0, "")

    def is_whole(self) -> bool:
        return True

    def set_pace(self, seconds: float) -> None:
        assert seconds > 0


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    for name, seconds in {"PATIENCE": 0.1, "RECOVERY": 0.4, "FINISH": 0.1, "LOOK_EVERY": 0.0, "TICK": 0.01}.items():
        monkeypatch.setattr(f"tests.chaos.stack.referee.{name}", seconds)


def refereed(place: Path, run: StandIn, faults: tuple[Fault, ...] = FAULTS) -> list[Struck]:
    referee = Referee(place, cast("Scene", run), faults, 0.1, 10)
    referee.carry_out(Disk(place), seed=0)
    return referee.struck


def test_a_fault_after_which_groups_come_in_was_got_over(tmp_path: Path) -> None:
    count = iter(range(1, 10_000))
    struck = refereed(tmp_path, StandIn(tmp_path, lambda: next(count)))
    assert [one.recovered is not None for one in struck] == [True, True]


def test_a_fault_after_which_nothing_comes_in_was_not(tmp_path: Path) -> None:
    assert [one.recovered for one in refereed(tmp_path, StandIn(tmp_path, lambda: 5))] == [None, None]


def test_a_store_that_could_not_be_read_for_a_moment_is_no_progress(tmp_path: Path) -> None:
    told = iter([5] * 8 + [None] * 3)
    assert [one.recovered for one in refereed(tmp_path, StandIn(tmp_path, lambda: next(told, 5)))] == [None, None]


def test_the_fault_that_a_run_did_not_survive_is_written_down_and_is_the_last(tmp_path: Path) -> None:
    struck = refereed(tmp_path, StandIn(tmp_path, lambda: 5, frail=True))
    assert [(one.number, one.recovered) for one in struck] == [(0, None)]
    [line] = (tmp_path / "faults.jsonl").read_text().splitlines()
    assert json.loads(line)["kind"] == "set forward the clock of api"


def test_a_fault_that_found_nobody_is_told_so(tmp_path: Path) -> None:
    faults = (Fault(0, 0.0, Kind(Form.KILL, "sandbox")),)
    assert [one.missed for one in refereed(tmp_path, StandIn(tmp_path, lambda: 5), faults)] == ["nobody was there"]
