"""New policies from the weights of others, on a real SkyRL: the same weights, with an optimizer that starts anew."""

import gc
import json
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from hermes_rl.core.errors import ConfigError
from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.engines.protocol import Adam, EngineCheckpoint, EngineError, Example
from hermes_rl.training.engines.tinker import TinkerEngine, find_state
from hermes_rl.training.initial_weights import InitialWeights, state_at_engine
from hermes_rl.training.utilization import BusyTimer
from hermes_rl.training.weights.download import Remote, download_adapter
from tests.engines.skyrl.test_tinker_api import example, opened, sampled, sdk_leaks, spelled
from tests.support.adapters import random_adapter
from tests.support.skyrl_engine import SkyrlEngine

# The SDK never closes some of its connections, and a refused policy leaves them to the garbage collector.
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
TENSORS = "adapter_model.safetensors"
Logprobs = Sequence[NDArray[np.float32]]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """What the SDK left is collected here, not in a later test."""
    yield
    gc.collect()


@pytest.fixture
def settings(skyrl_engine: SkyrlEngine) -> TrainerSettings:
    return TrainerSettings(base_url=skyrl_engine.url, base_model=skyrl_engine.model, lora_rank=8, engine_patience=60)


@pytest.fixture
async def trained(settings: TrainerSettings) -> AsyncIterator[tuple[EngineCheckpoint, list[Example], Logprobs]]:
    """A checkpoint of a policy after two steps, examples, and the logprobs that it gives them."""
    engine = await opened(settings)
    examples = [example(one, advantage) for one, advantage in zip(await sampled(engine), (1, -1, 1, -1), strict=True)]
    for _ in range(2):
        await engine.step(examples, "importance_sampling", None, Adam(1e-2))
    yield await engine.save("trained"), examples, await engine.logprobs(examples)
    await engine.close()


@pytest.fixture
async def exported(
    trained: tuple[EngineCheckpoint, list[Example], Logprobs], settings: TrainerSettings, tmp_path: Path
) -> Path:
    """The same weights in a PEFT folder."""
    folder = tmp_path / "exported"
    folder.mkdir()
    await download_adapter(Remote(trained[0].sampler, base_url=settings.base_url), folder)
    return folder


async def started(settings: TrainerSettings, start: InitialWeights) -> TinkerEngine:
    busy = BusyTimer()
    with sdk_leaks():
        async with state_at_engine(start, settings, busy) as initial:
            return await TinkerEngine.open(settings, None, busy=busy, decode=spelled, context=64, initial=initial)


async def stepped(engine: TinkerEngine, examples: list[Example]) -> Logprobs:
    """The logprobs after one more step."""
    await engine.step(examples, "importance_sampling", None, Adam(1e-2))
    logprobs = await engine.logprobs(examples)
    await engine.close()
    return logprobs


def apart(one: Logprobs, other: Logprobs) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))


async def test_a_state_gives_its_weights_and_no_optimizer(
    trained: tuple[EngineCheckpoint, list[Example], Logprobs], exported: Path, settings: TrainerSettings
) -> None:
    """A step from an uploaded adapter, which can have no optimizer, goes where a step from the state goes."""
    saved, examples, before = trained
    from_state = await started(settings, InitialWeights("state", saved.state))
    assert apart(await from_state.logprobs(examples), before) == 0
    anew = await stepped(from_state, examples)
    from_folder = await stepped(await started(settings, InitialWeights("folder", adapter=exported)), examples)
    resumed = await stepped(await opened(settings, saved.state), examples)
    print(f"apart from a folder {apart(anew, from_folder):.2e}, from a resumed policy {apart(anew, resumed):.2e}")
    assert apart(anew, from_folder) < 1e-5
    assert apart(anew, resumed) > 1e-3


async def test_an_exported_adapter_gives_its_weights_whatever_its_scale(
    trained: tuple[EngineCheckpoint, list[Example], Logprobs], exported: Path, settings: TrainerSettings
) -> None:
    _, examples, before = trained
    for alpha, factor in ((32, 1), (16, 2)):
        tensors = load_file(exported / TENSORS)
        folder = exported.with_name(f"alpha-{alpha}")
        shutil.copytree(exported, folder)
        save_file({name: one * (factor if "lora_B" in name else 1) for name, one in tensors.items()}, folder / TENSORS)
        config = json.loads((folder / "adapter_config.json").read_text())
        assert config["lora_alpha"] == 32
        (folder / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": alpha}))
        engine = await started(settings, InitialWeights("folder", adapter=folder))
        assert apart(await engine.logprobs(examples), before) < 1e-5
        # What is saved from it has the engine's own scale.
        sampler = await engine.sampler(await engine.save_sampler("again"))
        ids = [*examples[0].tokens.tolist(), int(examples[0].targets[-1])]
        assert (await sampler.logprobs(ids))[1:] == pytest.approx(before[0].tolist(), abs=1e-4)
        await engine.close()


async def test_weights_of_an_engine_that_is_gone_are_read_from_its_disk(
    trained: tuple[EngineCheckpoint, list[Example], Logprobs], skyrl_engine: SkyrlEngine, settings: TrainerSettings
) -> None:
    saved, examples, before = trained
    model, _, name = saved.sampler.removeprefix("tinker://").split("/")
    [archive] = skyrl_engine.home.glob(f"**/checkpoints/{model}/sampler_weights/{name}.tar.gz")
    unknown = InitialWeights("words-1", "tinker://model_00000000/weights/x", archive=archive)
    engine = await started(settings, unknown)
    assert apart(await engine.logprobs(examples), before) < 1e-5
    await engine.close()


async def test_an_upload_is_gone_when_the_policy_is_made(exported: Path, settings: TrainerSettings) -> None:
    busy = BusyTimer()
    with sdk_leaks():
        async with state_at_engine(InitialWeights("folder", adapter=exported), settings, busy) as path:
            assert path is not None
            assert await find_state(settings, path, busy) == (settings.base_model, 8)
        assert await find_state(settings, path, busy) is None


async def test_weights_of_another_rank_are_refused(
    trained: tuple[EngineCheckpoint, list[Example], Logprobs], settings: TrainerSettings
) -> None:
    other = settings.model_copy(update={"lora_rank": 4, "init_from": "words-1"})
    with pytest.raises(ConfigError, match=r"pass --tinker\.lora_rank 8"):
        await started(other, InitialWeights("words-1", trained[0].state))


async def test_adapters_that_the_engine_cannot_train_are_refused_at_once(
    exported: Path, settings: TrainerSettings, skyrl_engine: SkyrlEngine, tmp_path: Path
) -> None:
    """One trained elsewhere, where queries, keys and values each have their own lora_A, and one that lacks a layer."""
    elsewhere = random_adapter(Path(skyrl_engine.model), tmp_path / "elsewhere", seed=1)
    tensors = load_file(exported / TENSORS)
    save_file({name: one for name, one in tensors.items() if "layers.0." not in name}, exported / TENSORS)
    for folder, message in ((elsewhere, "do not share the same lora_A"), (exported, "lacks tensors")):
        with pytest.raises(EngineError, match=message) as refused:
            await started(settings, InitialWeights("folder", adapter=folder))
        assert refused.value.permanent
