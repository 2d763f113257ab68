"""A run taken up again is one run in every sink, and its file tells what became of it in the end."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.sinks.metrics_file import read_metrics
from hermes_rl.sinks.run_sinks import open_sinks
from hermes_rl.sinks.selection import SinkConfig
from tests.sinks.parts import Recorded, lines, offline_run, run, run_program, with_sinks


async def log_steps(folder: Path, resumed_from: int, steps: range, **metrics: Any) -> None:
    async with open_sinks(run(folder, resumed_from=resumed_from), SinkConfig(use_wandb=False)) as sinks:
        for step in steps:
            sinks.log({"loss": step / 10, **metrics}, step=step)


async def test_steps_after_the_one_resumed_from_are_superseded(tmp_path: Path) -> None:
    await log_steps(tmp_path, 0, range(1, 6), first=1)
    await log_steps(tmp_path, 2, range(3, 5))
    read = read_metrics(tmp_path / "metrics.jsonl")
    assert [(line["step"], "first" in line) for line in read] == [(1, True), (2, True), (3, False), (4, False)]


async def test_a_run_that_dies_before_its_next_line_has_lost_the_steps_it_did_not_keep(tmp_path: Path) -> None:
    await log_steps(tmp_path, 0, range(1, 4))
    await log_steps(tmp_path, 1, range(0))
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [1]


async def test_a_run_resumed_from_its_last_line_adds_nothing_of_its_own(tmp_path: Path) -> None:
    await log_steps(tmp_path, 0, range(1, 3))
    await log_steps(tmp_path, 2, range(3, 4))
    assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == [1, 2, 3]


async def test_a_torn_line_is_cut_off_before_the_next(tmp_path: Path) -> None:
    await log_steps(tmp_path, 0, range(1, 3))
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"time": 1, "step": 3, "lo')
    await log_steps(tmp_path, 2, range(3, 4))
    assert [line["loss"] for line in lines(tmp_path / "metrics.jsonl")] == [0.1, 0.2, 0.3]


def test_lines_of_one_step_are_read_as_one(tmp_path: Path) -> None:
    (tmp_path / "m").write_text('{"step": 1, "a": 1, "b": 1}\n{"step": 1, "b": 2}\n{"step": 4, "a": 3}\n')
    assert read_metrics(tmp_path / "m") == [{"step": 1, "a": 1, "b": 2}, {"step": 4, "a": 3}]


def test_a_torn_last_line_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "m").write_text('{"step": 1}\n{"step": 2}')
    assert read_metrics(tmp_path / "m") == [{"step": 1}]


@pytest.mark.parametrize("line", ["[]", "{}", "torn", '{"step": "one"}'])
def test_a_line_that_holds_no_metrics_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "m").write_text(f'{{"step": 1}}\n{line}\n')
    with pytest.raises(ConfigError, match="m, line 2 is not a metrics line"):
        read_metrics(tmp_path / "m")


async def test_what_a_sink_had_of_a_step_stays(tmp_path: Path) -> None:
    class TakenUp(Recorded):
        def next_step(self) -> int:
            return 4

    sink = TakenUp()
    async with with_sinks(tmp_path / "m.jsonl", sink, resumed_from=1) as sinks:
        for step in range(2, 6):
            sinks.log({"a": step}, step=step)
    assert sink.calls == [(4, {"a": 4}), (5, {"a": 5})]
    assert [line["step"] for line in lines(tmp_path / "m.jsonl")] == [2, 3, 4, 5]


async def test_a_sink_takes_from_the_file_what_it_lacks(tmp_path: Path) -> None:
    class TakenUp(Recorded):
        def next_step(self) -> int:
            return 2

    await log_steps(tmp_path, 0, range(1, 6), nested={"none": None, "text": "kept"})
    sink = TakenUp()
    async with with_sinks(tmp_path / "metrics.jsonl", sink, resumed_from=3) as sinks:
        sinks.log({"loss": 4}, step=4)
    kept = {"nested/text": "kept"}
    assert sink.calls == [(2, {"loss": 0.2, **kept}), (3, {"loss": 0.3, **kept}), (4, {"loss": 4})]


async def test_a_run_that_goes_back_while_it_runs_takes_its_steps_again(tmp_path: Path) -> None:
    sink = Recorded()
    async with with_sinks(tmp_path / "m.jsonl", sink, resumed_from=0) as sinks:
        for step in range(1, 5):
            sinks.log({"try": 1}, step=step)
        sinks.rewind_to(2)
        for step in range(3, 6):
            sinks.log({"try": 2}, step=step)
    read = read_metrics(tmp_path / "m.jsonl")
    assert [(line["step"], line["try"]) for line in read] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2)]
    assert [(step, metrics["try"]) for step, metrics in sink.calls] == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2)]


async def test_a_kept_identity_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metrics.sinks.json").write_text('{"format": "hermes-rl/sinks/99"}')
    with pytest.raises(ConfigError, match="remove it to start new runs"):
        async with open_sinks(run(tmp_path, resumed_from=0), SinkConfig(["trackio"])):
            pass


# --- the real ones, killed ---

PROGRAM = """
import asyncio, os, signal, sys, time
from pathlib import Path
from hermes_rl.sinks.selection import SinkConfig
from hermes_rl.sinks.run_sinks import MetricsRun, open_sinks

async def main(folder, sink, resumed_from, last, end):
    run = MetricsRun("trainer", Path(folder), resumed_from=int(resumed_from))
    async with open_sinks(run, SinkConfig([sink], use_wandb=sink == "wandb")) as sinks:
        for step in range(int(resumed_from) + 1, int(last) + 1):
            sinks.log({"loss": step / 10, "start": int(resumed_from)}, step=step)
        if end == "killed":
            await asyncio.sleep(2)
            os.kill(os.getpid(), signal.SIGKILL)
    assert not sinks.failures, sinks.failures

asyncio.run(main(*sys.argv[1:]))
"""


def test_wandb_has_one_run_of_a_trainer_that_was_killed(tmp_path: Path, unconnected: dict[str, str]) -> None:
    folder = tmp_path / "data"
    offline = {"WANDB_MODE": "offline", **unconnected}
    killed = run_program(PROGRAM, folder, "wandb", "0", "3", "killed", **offline)
    ended = run_program(PROGRAM, folder, "wandb", "2", "5", "ended", **offline)
    assert (killed.returncode, ended.returncode) == (-signal.SIGKILL, 0), ended.stderr
    first, second = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    kept = offline_run(folder)
    assert first.name == second.name == f"run-{kept.run_id}.wandb"
    assert [(row["_step"], row["start"]) for row in kept.history] == [(1, 0), (2, 0), (3, 2), (4, 2), (5, 2)]


TRACKIO = """
import json
import trackio
from trackio.sqlite_storage import SQLiteStorage
runs = trackio.Api().runs("hermes-rl")
print(json.dumps({run.name: SQLiteStorage.get_logs("hermes-rl", run.name) for run in runs}))
"""


def test_trackio_has_one_run_of_a_trainer_that_was_killed(tmp_path: Path, unconnected: dict[str, str]) -> None:
    kept = {"TRACKIO_DIR": str(tmp_path / "trackio"), **unconnected}
    killed = run_program(PROGRAM, tmp_path / "data", "trackio", "0", "3", "killed", **kept)
    ended = run_program(PROGRAM, tmp_path / "data", "trackio", "2", "5", "ended", **kept)
    assert (killed.returncode, ended.returncode) == (-signal.SIGKILL, 0), ended.stderr
    other = run_program(PROGRAM, tmp_path / "other", "trackio", "0", "1", "ended", **kept)
    assert other.returncode == 0, other.stderr
    read = run_program(TRACKIO, tmp_path / "data", **kept)
    runs = sorted(json.loads(read.stdout).values(), key=len)
    assert [[(log["step"], log["start"]) for log in logs] for logs in runs] == [
        [(1, 0)],
        [(1, 0), (2, 0), (3, 0), (4, 2), (5, 2)],
    ]
