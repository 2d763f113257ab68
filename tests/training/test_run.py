"""A run as `hermes-rl trainer` makes it, but for the engine: what it serves, writes and says."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.shutdown import StopSignal
from hermes_rl.core.trajectory import AuditedReward
from hermes_rl.sinks.metrics_file import read_metrics
from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.engines.protocol import EngineError
from hermes_rl.training.engines.tinker import TinkerEngine
from hermes_rl.training.engines.tinker.engine import StateInfo
from hermes_rl.training.run import RunCallbacks, run_training
from hermes_rl.training.run_folder import RunFolder
from hermes_rl.training.trainer import COMPLETE, RunFailedError
from tests.api.client.running_api import RunningApi, running_api
from tests.store.database.making import make_group, make_rollout
from tests.support.chat_models import chat_model
from tests.support.training_engine import Engines
from tests.training.training_run import fill


@dataclass
class Seen:
    """What a watcher was told."""

    urls: list[str] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    complete: asyncio.Event = field(default_factory=asyncio.Event)

    def watcher(self) -> RunCallbacks:
        return RunCallbacks(
            self.urls.append, lambda _: None, lambda step, _: self.steps.append(step), self.complete.set
        )


@dataclass
class Scene:
    settings: TrainerSettings
    folder: RunFolder
    engines: Engines
    seen: Seen = field(default_factory=Seen)

    async def run(self, stop: StopSignal | None = None, *, stay: bool = False) -> dict[str, Any]:
        async with asyncio.timeout(30):
            return await run_training(
                self.settings, self.folder, stop or StopSignal(5.0), self.seen.watcher(), stay=stay
            )


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[RunningApi]:
    async with running_api(tmp_path / "store.db") as api:
        await fill(api, range(10, 13))
        yield api


@pytest.fixture
def scene(tmp_path: Path, api: RunningApi, monkeypatch: pytest.MonkeyPatch) -> Scene:
    model = tmp_path / "model"
    chat_model("chatml").save(model)
    engines = Engines()

    async def opened(_: object, state: str | None, *, initial: str | None = None, **_rest: object) -> Any:
        return await engines.open(state or initial)

    monkeypatch.setattr(TinkerEngine, "open", opened)
    settings = TrainerSettings(
        base_url="http://engine",
        base_model=str(model),
        rollout_server_url=api.url,
        batch_size=2,
        total_steps=3,
        port=0,
        step_retries=0,
        use_wandb=False,
    )
    return Scene(settings, RunFolder(tmp_path / "run"), engines)


async def test_a_run_says_what_it_came_to(scene: Scene) -> None:
    result = await scene.run()
    assert (result["ended"], result["step"], result["version"]) == (COMPLETE, 3, 3)
    assert scene.folder.read_state()["state"] == COMPLETE
    assert scene.seen.steps == [1, 2, 3]


async def test_every_step_is_a_line_of_metrics(scene: Scene) -> None:
    await scene.run()
    lines = read_metrics(scene.folder.metrics)
    assert [line["step"] for line in lines] == [1, 2, 3]
    wanted = {"tokens/per_second", "time/trainer_idle_share", "time/engine_idle_share", "time/step", "reward/mean"}
    assert all(wanted <= line.keys() for line in lines)


async def test_nothing_is_written_outside_the_runs_folder(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    await scene.run()
    assert list(elsewhere.iterdir()) == []
    assert {"run.json", "lineage.jsonl", "metrics.jsonl"} <= {one.name for one in scene.folder.path.iterdir()}


async def test_inference_answers_while_it_waits_for_a_batch(scene: Scene) -> None:
    scene.settings = scene.settings.model_copy(update={"total_steps": 9})
    stop = StopSignal(5.0)
    running_it = asyncio.create_task(scene.run(stop))
    while len(scene.seen.steps) < 3:
        await asyncio.sleep(0.01)
    async with aiohttp.ClientSession() as session, session.get(f"{scene.seen.urls[0]}/health") as response:
        health = await response.json()
    assert (response.status, health["policy_version"]) == (200, 3)
    stop.request("SIGTERM")
    assert (await running_it)["ended"] == "SIGTERM"
    assert scene.folder.read_state()["state"] == "stopped"


async def test_a_run_that_stays_answers_from_its_last_weights(scene: Scene) -> None:
    stop = StopSignal(5.0)
    staying = asyncio.create_task(scene.run(stop, stay=True))
    await asyncio.wait_for(scene.seen.complete.wait(), 20)
    assert scene.folder.read_state()["state"] == COMPLETE
    async with aiohttp.ClientSession() as session, session.get(f"{scene.seen.urls[0]}/health") as response:
        assert (await response.json())["policy_version"] == 3
    stop.request("SIGTERM")
    assert (await staying)["ended"] == COMPLETE


async def test_a_run_that_failed_says_so_and_why(scene: Scene) -> None:
    def before(name: str) -> None:
        if name == "step":
            raise EngineError("out of memory")

    scene.engines.before = before
    with pytest.raises(RunFailedError):
        await scene.run()
    told = scene.folder.read_state()
    assert told["state"] == "failed"
    assert "out of memory" in told["error"]


async def test_a_run_goes_on_under_its_name(scene: Scene, api: RunningApi) -> None:
    await scene.run()
    scene.settings = scene.settings.model_copy(update={"total_steps": 4})
    await fill(api, range(20, 21), version=3)
    assert (await scene.run())["step"] == 4
    assert [line["step"] for line in read_metrics(scene.folder.metrics)] == [1, 2, 3, 4]


async def test_another_rank_is_another_run(scene: Scene) -> None:
    await scene.run()
    scene.settings = scene.settings.model_copy(update={"lora_rank": 7})
    with pytest.raises(ConfigError, match="lora_rank 32, not 7"):
        await scene.run()


async def test_a_run_is_in_one_process_at_a_time(scene: Scene) -> None:
    with scene.folder.acquire(scene.settings), pytest.raises(ConfigError, match="another process"):
        await scene.run()


async def test_no_secret_is_in_the_runs_folder(scene: Scene) -> None:
    scene.settings = scene.settings.model_copy(update={"inference_token": "s3cret-token"})
    await scene.run()
    assert all(b"s3cret" not in one.read_bytes() for one in scene.folder.path.iterdir())


async def test_vllm_cannot_sample_what_hosted_tinker_trains(scene: Scene) -> None:
    scene.settings = scene.settings.model_copy(update={"base_url": None, "vllm_servers": ["http://127.0.0.1:1"]})
    with pytest.raises(ConfigError, match=r"--tinker\.base_url"):
        await scene.run()


# --- another run's weights ---


@pytest.fixture
def first(scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Scene:
    """A run that others can start from, at the same engine."""

    async def find_state(settings: TrainerSettings, path: str, busy: object) -> StateInfo | None:
        return StateInfo(settings.base_model, settings.lora_rank) if path in scene.engines.checkpoints else None

    monkeypatch.setattr("hermes_rl.training.engines.tinker.find_state", find_state)
    return replace(scene, folder=RunFolder(tmp_path / "first"))


def second(scene: Scene, init_from: str) -> Scene:
    return replace(scene, settings=scene.settings.model_copy(update={"init_from": init_from}))


async def test_a_run_goes_on_from_the_weights_of_another(scene: Scene, first: Scene, api: RunningApi) -> None:
    assert (await first.run())["step"] == 3
    await fill(api, range(20, 23), version=await api.store.version())
    result = await second(scene, str(first.folder.path)).run()
    assert scene.engines.checkpoints[result["state"]] == (10, 11, 12, 20, 21, 22)
    assert result["step"] == 3
    began = scene.folder.read_state()["started_from"]
    assert (began["run"], began["step"]) == ("first", 3)


async def test_a_run_that_is_resumed_goes_on_from_its_own_weights(scene: Scene, first: Scene, api: RunningApi) -> None:
    await first.run()
    await fill(api, range(20, 22), version=await api.store.version())
    other = second(scene, str(first.folder.path))
    other.settings = other.settings.model_copy(update={"total_steps": 1})
    await other.run()
    other.settings = other.settings.model_copy(update={"total_steps": 2})
    result = await other.run()
    assert scene.engines.checkpoints[result["state"]] == (10, 11, 12, 20, 21)


async def test_a_run_cannot_be_given_another_beginning(scene: Scene, first: Scene) -> None:
    await first.run()
    with pytest.raises(ConfigError, match="started from an untrained adapter, not from elsewhere"):
        await replace(first, settings=first.settings.model_copy(update={"init_from": "elsewhere"})).run()


async def test_a_beginning_that_was_wrong_can_be_given_again(scene: Scene, first: Scene, api: RunningApi) -> None:
    with pytest.raises(ConfigError, match="no such run"):
        await second(scene, "nowhere").run()
    await first.run()
    await fill(api, range(20, 23), version=await api.store.version())
    assert (await second(scene, str(first.folder.path)).run())["ended"] == COMPLETE


async def test_weights_that_the_engine_lacks_fail_the_run_with_a_way_out(scene: Scene, first: Scene) -> None:
    with pytest.raises(ConfigError, match=r"http://engine has no tinker://gone/weights/x; use the engine"):
        await second(scene, "tinker://gone/weights/x").run()


async def test_a_run_whose_audit_gap_exceeds_its_limit_stops_with_the_reason(scene: Scene, api: RunningApi) -> None:
    audited = tuple(make_rollout(at, score=float(at), audit=AuditedReward(at - 1.0)) for at in range(2))
    environment = await api.store.register_environment("audited")
    for _ in range(7):
        await api.store.add(environment.id, make_group(rollouts=audited))
    limits = {"max_audit_gap": 0.1, "audit_gap_steps": 2, "total_steps": 9, "batch_size": 4, "max_staleness": 9}
    scene.settings = scene.settings.model_copy(update=limits)
    # A batch takes a group of each environment while it can: three batches have one audited group, whose low is 0.025.
    result = await scene.run(stay=True)
    assert (result["step"], result["ended"]) == (5, result["limit"])
    assert "audit gap +1.000 at step 5, at least +0.158 with 95% confidence" in result["limit"]
    state = scene.folder.read_state()
    assert (state["state"], state["limit"], state["step"]) == ("stopped", result["limit"], 5)
    with scene.folder.acquire(scene.settings):
        assert scene.folder.read_state()["limit"] is None
