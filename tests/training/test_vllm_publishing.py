import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.training.engines.protocol import EngineError
from hermes_rl.training.vllm_fleet.fleet import VllmFleet
from hermes_rl.training.vllm_fleet.membership import VllmTimeouts
from hermes_rl.training.weight_sync import VllmWeightSync
from tests.support.lora_server import LoraServer
from tests.support.scripted_model import Status
from tests.training.weights.archives import FILES, ArchiveServer, packed

SAMPLER = "tinker://model_1/sampler_weights/step"
ENGINE: Any = None
QUICK = VllmTimeouts(first_pause=0.02, longest_pause=0.05)


@pytest.fixture
async def server() -> AsyncIterator[LoraServer]:
    async with LoraServer() as server:
        yield server


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[ArchiveServer]:
    (tmp_path / "engine").mkdir()
    async with ArchiveServer(packed(tmp_path / "engine", FILES)) as engine:
        yield engine


@pytest.fixture
async def publishing(server: LoraServer, engine: ArchiveServer, tmp_path: Path) -> AsyncIterator[VllmWeightSync]:
    async with VllmFleet([server.root], run="words", timeouts=QUICK) as fleet:
        yield VllmWeightSync(fleet, tmp_path / "adapters", engine.url)


def folders(path: Path) -> set[str]:
    return {one.name for one in (path / "adapters").iterdir()}


async def test_servers_are_given_a_folder_with_the_whole_adapter(
    publishing: VllmWeightSync, server: LoraServer, tmp_path: Path
) -> None:
    await publishing.publish(3, ENGINE, SAMPLER)
    [place] = server.adapters.values()
    assert {path.name: path.read_bytes() for path in Path(place).iterdir()} == FILES
    assert (publishing.policy.version, Path(place)) == (3, tmp_path / "adapters" / "version-3")


async def test_folders_that_no_server_needs_are_removed(publishing: VllmWeightSync, tmp_path: Path) -> None:
    (tmp_path / "adapters" / "version-1").mkdir(parents=True)
    await publishing.publish(2, ENGINE, SAMPLER)
    await publishing.publish(3, ENGINE, SAMPLER)
    assert folders(tmp_path) == {"version-3"}


async def test_a_folder_stays_while_a_completion_runs_on_it(
    publishing: VllmWeightSync, server: LoraServer, tmp_path: Path
) -> None:
    await publishing.publish(1, ENGINE, SAMPLER)
    server.answering.clear()
    under_way = asyncio.create_task(publishing.policy.sample((1, 2), SamplingRequest.from_parameters({})))
    async with asyncio.timeout(30):
        while not server.open:
            await asyncio.sleep(0.01)
    await publishing.publish(2, ENGINE, SAMPLER)
    during = folders(tmp_path)
    server.answering.set()
    await under_way
    await publishing.publish(3, ENGINE, SAMPLER)
    assert (during, folders(tmp_path)) == ({"version-1", "version-2"}, {"version-3"})


async def test_a_version_published_again_is_not_fetched_again(
    publishing: VllmWeightSync, engine: ArchiveServer
) -> None:
    await publishing.publish(1, ENGINE, SAMPLER)
    publishing.withdraw()
    await publishing.publish(1, ENGINE, SAMPLER)
    assert (engine.asked, publishing.policy.version) == (["step"], 1)


async def test_weights_that_cannot_be_had_are_the_engines_fault(publishing: VllmWeightSync, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="Checkpoint not found"):
        await publishing.publish(1, ENGINE, "tinker://model_1/sampler_weights/gone")
    assert folders(tmp_path) <= {"version-1.new"}


async def test_a_torn_archive_reaches_no_server(
    publishing: VllmWeightSync, engine: ArchiveServer, server: LoraServer
) -> None:
    engine.archive.write_bytes(engine.archive.read_bytes()[:40])
    with pytest.raises(EngineError, match="cannot be unpacked"):
        await publishing.publish(1, ENGINE, SAMPLER)
    assert server.told == []


async def test_weights_that_every_server_refuses_fail_the_step(publishing: VllmWeightSync, server: LoraServer) -> None:
    server.load_fault = Status(500, {"error": {"message": "LoRA rank 64 is greater than max_lora_rank 16."}})
    with pytest.raises(EngineError, match="max_lora_rank"):
        await publishing.publish(1, ENGINE, SAMPLER)
