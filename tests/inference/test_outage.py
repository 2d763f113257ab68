"""An outage: the run pauses, says so, and goes on by itself; after the limit it ends, and is resumed."""

import asyncio
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hermes_rl import APIServerConfig
from hermes_rl.core.errors import EndpointError, Failure, FailureSource
from hermes_rl.inference import outage
from hermes_rl.inference.outage import OutageError, may_be_outage
from hermes_rl.inference.readiness import check_model_is_served
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.rollout.generate import generate_groups
from hermes_rl.rollout.metrics import RolloutCounts
from hermes_rl.store.records import read_groups
from tests.rollout.test_rollout import writes_the_number
from tests.support.environments import FileEnv
from tests.support.ports import free_port
from tests.support.scripted_model import ScriptedModel, Status, Text, always

LOST = Failure(FailureSource.ENDPOINT, "connection", "gone")
BEFORE = float("-inf")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "ASK_EVERY", 0.02)


def port_of(model: ScriptedModel) -> int:
    return int(model.base_url.rpartition(":")[2].removesuffix("/v1"))


def server_at(port: int, **fields: Any) -> ServerManager:
    fields = {"outage_limit": 20, "max_retries": 0, "timeout": 20} | fields
    return ServerManager([APIServerConfig(base_url=f"http://127.0.0.1:{port}/v1", model_name="scripted", **fields)])


async def test_an_endpoint_that_answers_is_no_outage() -> None:
    async with ScriptedModel(always(Text("x"))) as model, server_at(port_of(model)) as server:
        assert not await server.outage.caused(LOST, BEFORE)


async def test_an_endpoint_that_comes_back_ends_the_pause_and_its_length_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    port = free_port()
    async with server_at(port) as server:
        began = time.monotonic()
        paused = [asyncio.create_task(server.outage.caused(LOST, began)) for _ in range(5)]
        while not server.outage.text:
            await asyncio.sleep(0.005)
        assert server.waiting_text().startswith("paused for 0 s: no answer from http://127.0.0.1:")
        async with ScriptedModel(always(Text("x")), port=port):
            assert await asyncio.gather(*paused) == [True] * 5
        assert server.outage.text == ""
    shown = capsys.readouterr().err
    assert shown.count("the run is paused and continues by itself") == 1
    assert re.search(r"answers again; the run continues after \d+ s", shown)


async def test_an_outage_that_exceeds_the_limit_ends_everyone_who_waits() -> None:
    async with server_at(free_port(), outage_limit=0.05) as server:
        waiting = [server.outage.caused(LOST, BEFORE) for _ in range(3)]
        errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in errors] == [OutageError] * 3
        with pytest.raises(OutageError, match="--resume"):
            await server.outage.over()


async def test_an_address_where_nothing_ever_answered_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "UNREACHABLE_SECONDS", 0.05)
    async with server_at(free_port(), outage_limit=3600, health_check=False) as server:
        with pytest.raises(OutageError, match=r"check --openai\.base_url"):
            await server.outage.caused(LOST, BEFORE)


async def test_a_limit_of_zero_never_pauses() -> None:
    async with server_at(free_port(), outage_limit=0) as server:
        assert not await server.outage.caused(LOST, BEFORE)


@pytest.mark.parametrize(
    ("whose", "cause", "may_be"),
    [
        ("endpoint", "connection", True),
        ("endpoint", "http_503", True),
        ("endpoint", "timeout", True),
        ("endpoint", "http_429", True),
        ("framework", "worker_timeout", True),
        ("endpoint", "http_400", False),
        ("endpoint", "bad_response", False),
        ("sandbox", "start", False),
    ],
)
def test_only_some_failures_can_be_an_outage(whose: str, cause: str, may_be: bool) -> None:
    assert may_be_outage(Failure(FailureSource(whose), cause, "")) is may_be


# A whole run.


async def made(path: Path, port: int, *, resume: bool = False, **fields: Any) -> RolloutCounts:
    env = FileEnv(
        FileEnv.env_config_cls(total_steps=4, group_size=2, max_num_workers=2, rollout_retries=0),
        server_at(port, **fields).configs,
    )
    async with env.opened():
        return await generate_groups(env, path, resume=resume)


async def until_paused(capsys: pytest.CaptureFixture[str]) -> None:
    async with asyncio.timeout(60):
        while "the run is paused" not in capsys.readouterr().err:
            await asyncio.sleep(0.02)


async def lost_after(
    model: ScriptedModel, requests: int, tmp_path: Path, **fields: Any
) -> "asyncio.Task[RolloutCounts]":
    """A run whose model server is gone after this many requests."""
    async with model:
        run = asyncio.create_task(made(tmp_path / "groups.jsonl", port_of(model), **fields))
        while model.requests < requests and not run.done():
            await asyncio.sleep(0.01)
    return run


async def test_a_run_survives_the_loss_of_its_model_server_without_a_failed_rollout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ScriptedModel(writes_the_number)
    run = await lost_after(model, 5, tmp_path)
    await until_paused(capsys)
    async with ScriptedModel(writes_the_number, port=port_of(model)):
        tally = await run
    assert (tally.groups, tally.scores, tally.failures) == (4, [1.0] * 8, {})
    assert tally.retried["endpoint/connection"] > 0


async def serving(port: int) -> "asyncio.subprocess.Process":
    """A model server in a process of its own, once it answers."""
    command = [sys.executable, "-m", "tests.support.scripted_model", "--port", f"{port}", "--delay", "0.2"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    assert (await process.stdout.readline()).startswith(b"ready")
    return process


async def test_a_run_survives_that_its_model_server_is_killed_and_started_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    killed = await serving(port)
    run = asyncio.create_task(made(tmp_path / "groups.jsonl", port))
    await asyncio.sleep(0.5)
    killed.kill()
    await killed.wait()
    await until_paused(capsys)
    again = await serving(port)
    try:
        tally = await run
    finally:
        again.kill()
        await again.wait()
    assert (tally.groups, len(tally.scores), tally.failures) == (4, 8, {})
    assert tally.retried["endpoint/connection"] > 0


async def test_a_run_without_its_model_server_ends_and_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = await lost_after(ScriptedModel(writes_the_number), 5, tmp_path, outage_limit=0.05)
    with pytest.raises(OutageError, match=r"no answer from http://127\.0\.0\.1:\d+/v1 for 0 s"):
        await run
    assert "continue with --resume" in capsys.readouterr().err
    groups = list(read_groups(tmp_path / "groups.jsonl"))
    assert all(rollout.scored for group in groups for rollout in group.rollouts)
    async with ScriptedModel(writes_the_number) as model:
        assert (await made(tmp_path / "groups.jsonl", port_of(model), resume=True)).scores == [1.0] * 8


# Resuming what failed before there was a pause, or on a sandbox host.


async def test_resuming_redoes_what_an_endpoint_made_fail_and_keeps_the_old_groups(tmp_path: Path) -> None:
    def odd_numbers_fail(request: dict[str, Any]) -> Any:
        odd = int(request["messages"][0]["content"].split()[-1]) % 2
        return Status(500) if odd else writes_the_number(request)

    path = tmp_path / "groups.jsonl"
    for script, scored in ((odd_numbers_fail, 4), (writes_the_number, 8)):
        async with ScriptedModel(script) as model:
            assert len((await made(path, port_of(model), resume=path.exists())).scores) == scored
    assert sorted(group.draw for group in read_groups(path)) == [0, 1, 2, 3]
    failed = list(read_groups(tmp_path / "groups.failed.jsonl"))
    assert sorted(group.draw for group in failed) == [0, 2]


async def test_resuming_does_not_redo_what_the_reward_made_fail(tmp_path: Path) -> None:
    class Broken(FileEnv):
        async def compute_reward(self, *_: Any) -> float:
            raise ZeroDivisionError

    path, asked = tmp_path / "groups.jsonl", []
    async with ScriptedModel(writes_the_number) as model:
        for _ in range(2):
            env = Broken(
                Broken.env_config_cls(total_steps=1, group_size=1),
                [APIServerConfig(base_url=model.base_url, model_name="scripted")],
            )
            async with env.opened():
                await generate_groups(env, path, resume=path.exists())
            asked.append(model.requests)
    assert asked[0] == asked[1] > 0
    assert not (tmp_path / "groups.failed.jsonl").exists()


# At the start.


async def test_an_address_where_nothing_answers_is_an_error_within_fifteen_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hermes_rl.inference.readiness.UNREACHABLE_SECONDS", 0.2)
    async with ServerManager([APIServerConfig(base_url=f"http://127.0.0.1:{free_port()}/v1")]) as server:
        with pytest.raises(EndpointError, match=r"check --openai\.base_url, its port too; .* --openai\.ready_timeout"):
            await server.wait_until_ready(60)


async def test_a_ready_timeout_that_is_set_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_rl.inference.readiness.UNREACHABLE_SECONDS", 0.01)
    port = free_port()
    async with server_at(port, ready_timeout=30) as server:
        waiting = asyncio.create_task(server.wait_until_ready(30))
        await asyncio.sleep(0.1)
        async with ScriptedModel(always(Text("x")), port=port):
            await waiting


async def test_a_model_that_is_not_served_is_an_error_with_those_that_are() -> None:
    async with ScriptedModel(always(Text("x"))) as model:
        config = APIServerConfig(base_url=model.base_url, model_name="scriptd")
        async with ServerManager([config]) as server:
            told = "no model 'scriptd'; it serves scripted. Pass --openai.model_name scripted"
            with pytest.raises(EndpointError, match=told):
                await server.wait_until_ready(5)


def test_with_several_models_one_has_to_be_named() -> None:
    models = {"data": [{"id": "small"}, {"id": "large"}]}
    with pytest.raises(EndpointError, match="no model was named; it serves small, large"):
        check_model_is_served(models, APIServerConfig(base_url="http://127.0.0.1:1/v1"), "http://127.0.0.1:1/v1")


def test_the_only_model_needs_no_name() -> None:
    models = {"data": [{"id": "small"}]}
    check_model_is_served(models, APIServerConfig(base_url="http://127.0.0.1:1/v1"), "http://127.0.0.1:1/v1")
