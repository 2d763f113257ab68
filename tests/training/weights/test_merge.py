import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hermes_rl.core.errors import ConfigError
from hermes_rl.training.weights.adapter import Adapter
from hermes_rl.training.weights.merge import MergedModel, write_merged
from hermes_rl.training.weights.model_folder import ModelFolder
from hermes_rl.training.weights.tensors import to_float32
from tests.support.adapters import ALPHA, random_adapter
from tests.support.model_folders import HIDDEN, VOCABULARY, small_model

QUERY = "model.layers.1.self_attn.q_proj"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return small_model(tmp_path / "base")


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    return random_adapter(base, tmp_path / "adapter", seed=1, rank=4)


def merged(base: Path, adapter: Path, out: Path) -> dict[str, Any]:
    out.mkdir()
    write_merged(MergedModel(ModelFolder(base), Adapter(adapter)), out, lambda *_: None)
    return {name: value for file in out.glob("*.safetensors") for name, value in load_file(file).items()}


def with_parts(adapter: Path, parts: dict[str, Any], **config: Any) -> Path:
    """The adapter with other tensors and settings."""
    save_file(parts, adapter / "adapter_model.safetensors")
    told = json.loads((adapter / "adapter_config.json").read_text()) | config
    (adapter / "adapter_config.json").write_text(json.dumps(told))
    return adapter


def head(rank: int = 2) -> dict[str, Any]:
    chance = np.random.default_rng(3)
    return {
        "base_model.model.lm_head.lora_A.weight": chance.normal(size=(rank, HIDDEN)).astype(np.float32),
        "base_model.model.lm_head.lora_B.weight": chance.normal(size=(VOCABULARY, rank)).astype(np.float32),
    }


def test_each_changed_weight_is_the_base_and_the_scaled_product(base: Path, adapter: Path, tmp_path: Path) -> None:
    parts, before = load_file(adapter / "adapter_model.safetensors"), load_file(base / "model.safetensors")
    after = merged(base, adapter, tmp_path / "out")
    down, up = (parts[f"base_model.model.{QUERY}.lora_{side}.weight"].astype(np.float64) for side in "AB")
    expected = before[f"{QUERY}.weight"] + ALPHA / 4 * (up @ down)
    np.testing.assert_allclose(after[f"{QUERY}.weight"], expected, rtol=1e-5, atol=1e-5)


def test_what_the_adapter_does_not_change_stays_as_it_is(base: Path, adapter: Path, tmp_path: Path) -> None:
    before, after = load_file(base / "model.safetensors"), merged(base, adapter, tmp_path / "out")
    untouched = [name for name in before if "_proj" not in name]
    assert all(before[name].tobytes() == after[name].tobytes() for name in untouched)
    assert set(before) == set(after)


def test_a_model_in_several_files_stays_in_several(tmp_path: Path) -> None:
    base = small_model(tmp_path / "base", shards=3)
    adapter = random_adapter(base, tmp_path / "adapter", seed=1)
    whole = small_model(tmp_path / "whole")
    in_parts = merged(base, adapter, tmp_path / "out")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(in_parts)
    in_one = merged(whole, adapter, tmp_path / "one")
    assert all(in_one[name].tobytes() == in_parts[name].tobytes() for name in in_one)


def test_weights_keep_the_type_of_the_base(tmp_path: Path) -> None:
    base = small_model(tmp_path / "base", kind="BF16")
    adapter = random_adapter(base, tmp_path / "adapter", seed=1)
    model = MergedModel(ModelFolder(base), Adapter(adapter))
    before, after = ModelFolder(base).tensor(f"{QUERY}.weight"), model.tensor(f"{QUERY}.weight")
    exact = to_float32(before) + Adapter(adapter).delta(QUERY)
    assert after.dtype == "BF16"
    np.testing.assert_allclose(to_float32(after), exact, rtol=2**-8)


def test_config_and_tokenizer_go_with_it(base: Path, adapter: Path, tmp_path: Path) -> None:
    merged(base, adapter, tmp_path / "out")
    copied = {path.name for path in (tmp_path / "out").iterdir()}
    assert copied == {"config.json", "tokenizer.json", "model.safetensors"}


def test_a_head_that_shares_its_weights_is_parted_from_the_embeddings(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    before = load_file(base / "model.safetensors")["model.embed_tokens.weight"]
    after = merged(base, with_parts(adapter, head(), r=2), tmp_path / "out")
    product = head()["base_model.model.lm_head.lora_B.weight"] @ head()["base_model.model.lm_head.lora_A.weight"]
    np.testing.assert_array_equal(after["model.embed_tokens.weight"], before)
    np.testing.assert_allclose(after["lm_head.weight"], before + ALPHA / 2 * product, rtol=1e-5, atol=1e-4)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False


def test_an_adapter_of_another_model_is_refused(base: Path, adapter: Path) -> None:
    layer = "base_model.model.model.layers.9.mlp.up_proj"
    foreign = {f"{layer}.lora_{side}.weight": np.ones((2, 2), np.float32) for side in "AB"}
    with pytest.raises(ConfigError, match=r"no layer model\.layers\.9\.mlp\.up_proj"):
        MergedModel(ModelFolder(base), Adapter(with_parts(adapter, foreign)))


def test_an_adapter_of_another_size_is_refused(base: Path, adapter: Path) -> None:
    foreign = {f"base_model.model.{QUERY}.lora_{side}.weight": np.ones((2, 2), np.float32) for side in "AB"}
    model = MergedModel(ModelFolder(base), Adapter(with_parts(adapter, foreign)))
    with pytest.raises(ConfigError, match="right base model"):
        model.tensor(f"{QUERY}.weight")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a bias", {f"base_model.model.{QUERY}.lora_B.bias": np.ones(2, np.float32)}),
        ("a magnitude", {f"base_model.model.{QUERY}.lora_magnitude_vector": np.ones(2, np.float32)}),
        ("embeddings", {"base_model.model.model.embed_tokens.lora_embedding_A": np.ones((2, 2), np.float32)}),
        ("one side", {f"base_model.model.{QUERY}.lora_A.weight": np.ones((2, 2), np.float32)}),
    ],
)
def test_an_adapter_that_is_more_than_two_matrices_is_refused(adapter: Path, name: str, parts: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"adapter_model\.safetensors"):
        Adapter(with_parts(adapter, parts))


@pytest.mark.parametrize("setting", ["use_dora", "modules_to_save"])
def test_another_kind_of_adapter_is_refused_by_name(adapter: Path, setting: str) -> None:
    with pytest.raises(ConfigError, match=setting):
        Adapter(with_parts(adapter, head(), **{setting: True}))


def test_rank_and_alpha_may_differ_by_layer(adapter: Path) -> None:
    patterns = {"alpha_pattern": {"q_proj": 8}, "rank_pattern": {r"layers\.1\.self_attn\.q_proj": 2}}
    read = Adapter(with_parts(adapter, head(), **patterns))
    assert [read.scale(name) for name in (QUERY, QUERY.replace("1", "0"), "model.layers.0.mlp.up_proj")] == [4, 2, 8]


def test_rank_stabilised_adapters_are_scaled_by_the_root(adapter: Path) -> None:
    assert Adapter(with_parts(adapter, head(), use_rslora=True)).scale("lm_head") == 16


def test_the_layers_are_named_for_peft_where_the_engine_did_not(adapter: Path) -> None:
    described = Adapter(with_parts(adapter, head(), target_modules=None, task_type=None)).peft_config("my/model")
    told = (described["target_modules"], described["task_type"], described["base_model_name_or_path"])
    assert told == (["lm_head"], "CAUSAL_LM", "my/model")
