import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tinker

from hermes_rl.core.errors import ConfigError
from hermes_rl.training.engines.protocol import EngineError
from hermes_rl.training.weights.adapter import CONFIG, TENSORS
from hermes_rl.training.weights.download import Remote, download_adapter
from tests.training.weights.archives import FILES, ArchiveServer, packed

SAMPLER = "tinker://model_1/sampler_weights/one"


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[ArchiveServer]:
    (tmp_path / "engine").mkdir()
    async with ArchiveServer(packed(tmp_path / "engine", FILES)) as engine:
        yield engine


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    return made


@pytest.mark.parametrize("sampler", [SAMPLER, "tinker://model_1/one"])
async def test_an_adapter_comes_as_its_two_files(engine: ArchiveServer, folder: Path, sampler: str) -> None:
    told: list[tuple[int, int]] = []
    await download_adapter(Remote(sampler, base_url=engine.url), folder, lambda *bytes_: told.append(bytes_))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert told[-1][0] == told[-1][1] > 0


async def test_weights_that_the_engine_does_not_have_are_named(engine: ArchiveServer, folder: Path) -> None:
    with pytest.raises(EngineError, match=r"HTTP 404: .*Checkpoint not found") as caught:
        await download_adapter(Remote("tinker://model_1/sampler_weights/gone", base_url=engine.url), folder)
    assert caught.value.permanent


async def test_an_engine_that_is_away_says_how_to_start_it(folder: Path) -> None:
    with pytest.raises(EngineError, match="hermes-rl engine start"):
        await download_adapter(Remote(SAMPLER, base_url="http://127.0.0.1:1"), folder)


@pytest.mark.parametrize("path", ["tinker://model_1/weights/one", "tinker://model_1", "tinker:///one", "model_1/one"])
async def test_a_path_of_no_sampler_is_refused(path: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(path)):
        await download_adapter(Remote(path, base_url="http://127.0.0.1:1"), folder)


class HostedTinker:
    """What the SDK gives for hosted Tinker, which no test can ask."""

    def __init__(self, urls: dict[str, str]) -> None:
        self.urls, self.deleted, self.loaded = urls, list[str](), list[str]()

    def create_training_client_from_state(self, path: str) -> Any:
        self.loaded.append(path)
        exported = SimpleNamespace(path="tinker://other/external_weights/hermes-rl-export")
        return SimpleNamespace(save_weights_external=lambda *_, **__: SimpleNamespace(result=lambda: exported))

    def get_external_weights_urls(self, path: str) -> Any:
        return SimpleNamespace(result=lambda: SimpleNamespace(urls=self.urls))

    def delete_checkpoint_from_tinker_path(self, path: str) -> Any:
        self.deleted.append(path)
        return SimpleNamespace(result=lambda: None)


async def test_hosted_tinker_hands_out_a_state_as_files(
    engine: ArchiveServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosted = HostedTinker({name: f"{engine.url}/signed/{name}" for name in (CONFIG, TENSORS)})
    for name in ("ServiceClient", "RestClient"):
        monkeypatch.setattr(tinker, name, lambda **_: hosted)
    await download_adapter(Remote(SAMPLER, "tinker://model_1/weights/one"), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert (hosted.loaded, hosted.deleted) == (
        ["tinker://model_1/weights/one"],
        ["tinker://other/external_weights/hermes-rl-export"],
    )


async def test_a_copy_without_an_adapter_is_removed_all_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosted = HostedTinker({"model.safetensors.age": "http://127.0.0.1:1"})
    for name in ("ServiceClient", "RestClient"):
        monkeypatch.setattr(tinker, name, lambda **_: hosted)
    with pytest.raises(EngineError, match=r"without adapter_config\.json"):
        await download_adapter(Remote(SAMPLER, "tinker://model_1/weights/one"), folder)
    assert hosted.deleted


async def test_hosted_tinker_has_no_samplers_to_hand_out(folder: Path) -> None:
    with pytest.raises(ConfigError, match="--base-url"):
        await download_adapter(Remote(SAMPLER), folder)
