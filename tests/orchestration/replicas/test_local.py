"""Replicas on this machine, against a real trajectory API: every item once, whatever is killed, resized or drained."""

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.orchestration.replicas.state_file import FleetPaths, read_fleet_state
from hermes_rl.orchestration.run_file import EnvironmentEntry, ReplicasEntry, RunFile
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.supervision.plan_builder import build_plan
from hermes_rl.orchestration.supervision.run_plan import fill_command
from tests.orchestration.replicas.stage import ENVIRONMENT, SETTINGS, Command, Stage, staged, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def counts(stage: Stage, state: str) -> int:
    told = stage.standing() or {"shards": []}
    return sum(one["state"] == state for one in told["shards"])


def held(stage: Stage) -> Mapping[str, list[int]]:
    told = stage.standing() or {"replicas": {}}
    return {name: one["shards"] for name, one in told["replicas"].items() if one["state"] == "open"}


def workers(stage: Stage) -> list[int]:
    """The processes that serve for this stage, by what their arguments say."""
    found = subprocess.run(
        ["pgrep", "-f", f"hermes_rl serve .*{stage.folder}.*--env.shard "], capture_output=True, check=False
    )
    return [int(pid) for pid in found.stdout.split()]


async def served(stage: Stage, command: Command, shards: int) -> None:
    await until(lambda: counts(stage, "served") == shards, what=lambda: command.said)


async def made(stage: Stage, command: Command, groups: int) -> None:
    await until(lambda: stage.groups() >= groups, what=lambda: command.said)


async def finished(command: Command) -> int:
    await until(lambda: command.process.poll() is not None, 200, lambda: command.said)
    return command.ended()


async def test_a_fleet_is_resized_drained_and_its_workers_killed_and_every_item_is_made_once(tmp_path: Path) -> None:
    async with staged(tmp_path, seconds_a_turn=0.4) as stage:
        command = stage.serve("--replicas", "2", "--shards", "3", items=90)
        await served(stage, command, 3)
        await made(stage, command, 3)
        os.kill(workers(stage)[0], signal.SIGKILL)
        assert stage.replicas("resize", "numbers", "3")["wanted"] == 3
        await until(lambda: sorted(map(len, held(stage).values())) == [1, 1, 1], what=lambda: command.said)
        assert stage.replicas("drain", "numbers", "replica-1")["leaving"] == ["replica-1"]
        await until(lambda: "replica-1" not in held(stage) and len(held(stage)) == 3, what=lambda: command.said)
        assert await finished(command) == 0, command.said
        assert stage.draws() == dict.fromkeys(range(90), 1)
        assert not workers(stage)


@pytest.mark.long
async def test_a_driver_that_is_killed_leaves_no_worker_and_the_same_command_goes_on(tmp_path: Path) -> None:
    async with staged(tmp_path, seconds_a_turn=0.2) as stage:
        first = stage.serve("--replicas", "2", items=30)
        await served(stage, first, 2)
        await made(stage, first, 4)
        first.signal(signal.SIGKILL)
        await until(lambda: not workers(stage), 20)
        # The API knows the number of shards, so that fewer replicas find the items where they were left.
        second = stage.serve("--replicas", "1", items=30)
        assert await finished(second) == 0, second.said
        assert "2 shards" in second.said
        assert stage.draws() == dict.fromkeys(range(30), 1)


@pytest.mark.long
async def test_a_stop_delivers_what_is_in_flight_and_leaves_nothing_running(tmp_path: Path) -> None:
    async with staged(tmp_path, seconds_a_turn=0.5) as stage:
        command = stage.serve("--replicas", "2", items=1000)
        await served(stage, command, 2)
        await until(lambda: stage.model.open > 0, what=lambda: command.said)
        command.signal(signal.SIGTERM)
        assert await finished(command) == 0, command.said
        assert not workers(stage)
        told: dict[str, Any] = stage.standing() or {}
        assert told["ending"] == "stopped"
        draws = stage.draws()
        assert draws and set(draws.values()) == {1}


async def test_the_part_of_a_run_serves_from_replicas_and_keeps_their_files_in_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    async with staged(tmp_path) as stage:
        values = {**SETTINGS, "items": 12, "tokenizer_name": str(tmp_path / "tokenizer")}
        openai = {"model_name": "scripted", "server_type": "vllm"}
        entry = EnvironmentEntry(name="numbers", reference=str(ENVIRONMENT), env=values, openai=openai)
        run_file = RunFile(
            run_id="r1", name="one", preset="laptop", environments=(entry,), replicas=ReplicasEntry(count=2)
        )
        run_file.write(RunPaths("r1").file)
        [part] = [part for part in build_plan(run_file).parts if part.name == "env"]
        command = stage.run(fill_command(part.command, None, {"api": stage.api, "trainer": stage.model.root}))
        assert await finished(command) == 0, command.said
        assert stage.draws() == dict.fromkeys(range(12), 1)
        kept = RunPaths("r1").part("env") / "serve"
        assert sorted(path.name for path in (kept / "spool").iterdir()) == ["numbers-0-of-2", "numbers-1-of-2"]
        told = read_fleet_state(FleetPaths(run_file.fleet_of(entry)))
        assert told is not None
        assert [one["state"] for one in told["shards"]] == ["done", "done"]
