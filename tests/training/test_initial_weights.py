"""What a new run may start from, and what is refused before anything is started."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from hermes_rl.core.errors import ConfigError
from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.engines.protocol import EngineError
from hermes_rl.training.initial_weights import InitialWeights, find_initial_weights
from hermes_rl.training.weights.adapter import Adapter
from hermes_rl.training.weights.download import unpack_adapter
from hermes_rl.training.weights.upload import pack_adapter, upload_adapter
from tests.support.adapters import random_adapter
from tests.training.weights.run_files import run_folder, saved

HERE = {"base_url": "http://engine", "base_model": "some/model", "lora_rank": 8}
STATE = "tinker://m/weights/2"


def found(init_from: str | Path, **settings: Any) -> InitialWeights:
    weights = find_initial_weights(TrainerSettings(init_from=str(init_from), **{**HERE, **settings}))
    assert weights is not None
    return weights


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of runs, with `words-1` in it."""
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    folder = tmp_path / "home" / "rl" / "runs"
    lineage = [saved(1, state="tinker://m/weights/1"), saved(2, state=STATE, final=True)]
    run_folder(folder / "words-1", lineage, name="words-1", settings=HERE)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    shape = {
        "hidden_size": 8,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 6,
        "num_hidden_layers": 1,
    }
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(shape))
    return folder


@pytest.fixture
def adapter(tmp_path: Path, model: Path) -> Path:
    return random_adapter(model, tmp_path / "adapter", seed=1)


def changed(adapter: Path, **fields: Any) -> Path:
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | fields))
    return adapter


def test_without_the_setting_a_run_starts_from_nothing() -> None:
    assert find_initial_weights(TrainerSettings()) is None


def test_a_run_is_started_from_its_last_checkpoint(runs: Path) -> None:
    weights = found("words-1")
    assert (weights.state, weights.run, weights.step) == (STATE, "words-1", 2)
    assert found(runs / "words-1").state == STATE


def test_where_a_run_started_is_written_down(runs: Path) -> None:
    record = {"init_from": "words-1", "weights": STATE, "run": "words-1", "step": 2}
    assert found("words-1").record() == record


def test_weights_of_another_engine_are_found_on_disk(runs: Path) -> None:
    archive = runs.parent / "engines" / "other" / "checkpoints" / "m" / "sampler_weights" / "2.tar.gz"
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert found("words-1").archive == archive


@pytest.mark.parametrize("field", [{"base_model": "other/model"}, {"lora_rank": 16}])
def test_a_run_of_another_shape_is_refused_with_the_flag_to_pass(runs: Path, field: dict[str, Any]) -> None:
    [name] = field
    with pytest.raises(ConfigError, match=f"pass --tinker.{name} {HERE[name]}"):
        found("words-1", **field)


def test_a_run_of_an_own_engine_is_refused_on_hosted_tinker(runs: Path) -> None:
    with pytest.raises(ConfigError, match="trained on a self-hosted engine, this run on hosted Tinker"):
        found("words-1", base_url=None)


def test_a_path_at_the_engine_is_taken_as_it_is() -> None:
    assert found(STATE).state == STATE


def test_what_can_only_be_sampled_from_is_refused() -> None:
    with pytest.raises(ConfigError, match="tinker://MODEL/weights/NAME"):
        found("tinker://m/sampler_weights/2")


def test_what_is_not_there_is_refused(runs: Path) -> None:
    with pytest.raises(ConfigError, match="no such run in"):
        found("words-2")


def test_a_run_without_a_checkpoint_is_refused(runs: Path) -> None:
    run_folder(runs / "begun", [], settings=HERE)
    with pytest.raises(ConfigError, match="no checkpoint yet"):
        found("begun")


def test_an_adapter_in_a_folder_is_taken(adapter: Path, model: Path) -> None:
    assert found(adapter, base_model=str(model)).adapter == adapter


def test_hosted_tinker_takes_no_folder(adapter: Path, model: Path) -> None:
    with pytest.raises(ConfigError, match="hosted Tinker cannot load an adapter from a folder"):
        found(adapter, base_model=str(model), base_url=None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"r": 4}, "pass --tinker.lora_rank 4"),
        ({"use_rslora": True}, "has use_rslora"),
        ({"rank_pattern": {"q_proj": 4}}, "has rank_pattern"),
        ({"use_dora": True}, "has use_dora"),
        ({"base_model_name_or_path": "other/model"}, "is for other/model"),
    ],
)
def test_adapters_that_cannot_be_trained_are_refused(
    adapter: Path, model: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        found(changed(adapter, **fields), base_model=str(model))


def test_a_packed_adapter_is_the_same_adapter(adapter: Path, tmp_path: Path) -> None:
    pack_adapter(Adapter(adapter), tmp_path / "packed.tar.gz")
    folder = tmp_path / "unpacked"
    folder.mkdir()
    unpack_adapter(tmp_path / "packed.tar.gz", folder)
    before, after = Adapter(adapter), Adapter(folder)
    assert (after.rank, after.alpha, after.modules) == (before.rank, before.alpha, before.modules)
    assert all(np.array_equal(before.delta(module), after.delta(module)) for module in before.modules)


@asynccontextmanager
async def engine(status: int, answer: dict[str, Any]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Its address, and what was uploaded."""
    uploads: list[bytes] = []

    async def add(request: web.Request) -> web.Response:
        uploads.append(await request.read())
        return web.json_response(answer, status=status)

    app = web.Application(client_max_size=2**30)
    app.router.add_post("/api/v1/adapters", add)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0]
    yield f"http://{host}:{port}", uploads
    await runner.cleanup()


async def test_an_uploaded_adapter_has_a_path_at_the_engine(adapter: Path) -> None:
    async with engine(200, {"path": STATE}) as (url, uploads):
        assert await upload_adapter(url, Adapter(adapter)) == STATE
    assert uploads[0].startswith(b"\x1f\x8b")


async def test_an_engine_without_the_route_is_named(adapter: Path) -> None:
    async with engine(404, {}) as (url, _):
        with pytest.raises(ConfigError, match="hermes-rl engine start"):
            await upload_adapter(url, Adapter(adapter))


async def test_an_upload_that_is_refused_is_not_tried_again(adapter: Path) -> None:
    async with engine(400, {"detail": "not an adapter archive"}) as (url, _):
        with pytest.raises(EngineError, match="not an adapter archive") as refused:
            await upload_adapter(url, Adapter(adapter))
    assert refused.value.permanent
