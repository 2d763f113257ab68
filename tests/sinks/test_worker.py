"""A sink gets what fits it, in order, and can neither stop a run nor hold it up."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.sinks import worker
from hermes_rl.sinks.worker import MAX_FAILURES
from tests.sinks.parts import Recorded, lines, with_sinks


async def test_steps_never_go_back_and_a_table_joins_the_latest(tmp_path: Path) -> None:
    sink = Recorded()
    async with with_sinks(tmp_path / "m.jsonl", sink) as sinks:
        sinks.log({"a": 1})
        sinks.log({"a": 2}, step=10)
        sinks.log({"eval": 3}, step=8)
        sinks.rollouts([("text", 0.5)])
        sinks.log({"a": 4})
    assert sink.calls == [(0, {"a": 1}), (10, {"a": 2}), (10, {"eval": 3}), (11, {"a": 4})]
    assert [line["step"] for line in lines(tmp_path / "m.jsonl")] == [0, 10, 10, 11]
    assert sink.tables == [(10, [("text", 0.5)])]


async def test_a_sink_gets_neither_none_nor_what_another_package_made(tmp_path: Path) -> None:
    sink = Recorded()
    async with with_sinks(tmp_path / "m.jsonl", sink) as sinks:
        sinks.log({"none": None, "path": Path("x"), "text": "kept", "n": 1})
    assert sink.calls == [(0, {"text": "kept", "n": 1})]


async def test_a_sink_that_raises_is_said_once_counted_and_switched_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Raises(Recorded):
        def log(self, metrics: Mapping[str, Any], step: int) -> None:
            super().log(metrics, step)
            raise OSError("no such\nhost")

    broken, sound = Raises(), Recorded()
    async with with_sinks(tmp_path / "m.jsonl", broken, sound) as sinks:
        for number in range(MAX_FAILURES + 3):
            sinks.log({"a": number})
    assert len(lines(tmp_path / "m.jsonl")) == len(sound.calls) == MAX_FAILURES + 3
    assert len(broken.calls) == MAX_FAILURES
    assert (sinks.failures, sinks.active) == ({"recorded": MAX_FAILURES}, ["recorded"])
    said = capsys.readouterr().err
    assert said.count("OSError: no such host") == 1 and said.count("in a row and is disabled") == 1


async def test_single_failures_do_not_add_up_to_a_sink_that_is_off(tmp_path: Path) -> None:
    class Now(Recorded):
        def log(self, metrics: Mapping[str, Any], step: int) -> None:
            super().log(metrics, step)
            if step % 2:
                raise ConnectionError

    sink = Now()
    async with with_sinks(tmp_path / "m.jsonl", sink) as sinks:
        for number in range(4 * MAX_FAILURES):
            sinks.log({"a": number})
    assert (len(sink.calls), sinks.failures, sink.finished) == (4 * MAX_FAILURES, {"recorded": 2 * MAX_FAILURES}, True)


async def test_a_sink_that_cannot_start_leaves_the_run_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Refuses(Recorded):
        def start(self) -> str:
            raise PermissionError("not today")

    sink = Refuses()
    async with with_sinks(tmp_path / "m.jsonl", sink) as sinks:
        sinks.log({"a": 1})
    assert (sink.calls, sinks.active, len(lines(tmp_path / "m.jsonl"))) == ([], [], 1)
    assert "could not start and is disabled: PermissionError: not today" in capsys.readouterr().err


async def test_a_sink_that_hangs_holds_up_neither_the_loop_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "CLOSE_SECONDS", 0.2)
    go_on = threading.Event()

    class Hangs(Recorded):
        def log(self, metrics: Mapping[str, Any], step: int) -> None:
            go_on.wait(60)

    began = time.monotonic()
    async with with_sinks(tmp_path / "m.jsonl", Hangs()) as sinks:
        for number in range(1000):
            sinks.log({"a": number})
    took = time.monotonic() - began
    go_on.set()
    assert took < 5 and len(lines(tmp_path / "m.jsonl")) == 1000
    assert "was abandoned" in capsys.readouterr().err


async def test_a_slow_start_is_not_waited_for_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "START_SECONDS", 0.1)
    go_on = threading.Event()

    class Slow(Recorded):
        def start(self) -> str:
            go_on.wait(60)
            return "is on"

    sink = Slow()
    async with with_sinks(tmp_path / "m.jsonl", sink) as sinks:
        sinks.log({"a": 1})
        assert sink.calls == []
        go_on.set()
    assert sink.calls == [(0, {"a": 1})]
    assert "has not started within" in capsys.readouterr().err


async def test_a_sink_that_falls_behind_drops_lines_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "MAX_QUEUED", 10)
    go_on = threading.Event()

    class Slow(Recorded):
        def log(self, metrics: Mapping[str, Any], step: int) -> None:
            go_on.wait(60)
            super().log(metrics, step)

    sink = Slow()
    async with with_sinks(tmp_path / "m.jsonl", sink) as sinks:
        for number in range(50):
            sinks.log({"a": number})
        go_on.set()
    assert 10 <= len(sink.calls) <= 11 and len(lines(tmp_path / "m.jsonl")) == 50
    assert sinks.dropped == {"recorded": 50 - len(sink.calls)}
    assert capsys.readouterr().err.count("10 lines behind") == 1
