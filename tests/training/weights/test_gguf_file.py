import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from hermes_rl.core.errors import ConfigError
from hermes_rl.training.weights.adapter import Adapter
from hermes_rl.training.weights.gguf_file import write_gguf
from hermes_rl.training.weights.merge import MergedModel
from hermes_rl.training.weights.model_folder import ModelFolder
from hermes_rl.training.weights.tensors import to_float32
from tests.support.adapters import random_adapter
from tests.support.model_folders import VOCABULARY, small_model

PLAIN = {"type": "ByteLevel", "use_regex": True, "add_prefix_space": False}
TOKENIZER = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
    "pre_tokenizer": PLAIN,
    "added_tokens": [{"id": 3, "content": "<end>", "special": True}, {"id": 4, "content": "<tool>", "special": False}],
}
CONFIG = {"vocab_size": VOCABULARY, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "eos_token_id": 3}


def merged(place: Path, tokenizer: Any = None, kind: str = "F32", **config: Any) -> MergedModel:
    base = small_model(place / "base", kind=kind, **{**CONFIG, **config})
    (base / "tokenizer.json").write_text(json.dumps(tokenizer or TOKENIZER))
    return MergedModel(ModelFolder(base), Adapter(random_adapter(base, place / "adapter", seed=1)))


def written(model: MergedModel, place: Path, kind: str | None = None) -> GGUFReader:
    write_gguf(model, place / "small.gguf", kind, lambda *_: None)
    return GGUFReader(place / "small.gguf")


def test_weights_are_the_merged_ones_under_llama_cpps_names(tmp_path: Path) -> None:
    model = merged(tmp_path)
    tensors = {one.name: one for one in written(model, tmp_path).tensors}
    expected = to_float32(model.tensor("model.layers.1.mlp.up_proj.weight"))
    np.testing.assert_array_equal(np.asarray(tensors["blk.1.ffn_up.weight"].data), expected)


def test_a_head_that_is_the_embeddings_is_not_written_twice(tmp_path: Path) -> None:
    names = {one.name for one in written(merged(tmp_path), tmp_path).tensors}
    assert "token_embd.weight" in names and "output.weight" not in names


@pytest.mark.parametrize(("base", "kind"), [("F32", "F32"), ("F16", "F16"), ("BF16", "BF16")])
def test_the_type_is_the_base_models_own(tmp_path: Path, base: str, kind: str) -> None:
    tensors = {one.name: one.tensor_type.name for one in written(merged(tmp_path, kind=base), tmp_path).tensors}
    assert (tensors["blk.0.ffn_up.weight"], tensors["blk.0.attn_norm.weight"]) == (kind, "F32")


def test_rows_that_no_block_fits_into_stay_in_half(tmp_path: Path) -> None:
    tensors = {one.name: one.tensor_type.name for one in written(merged(tmp_path), tmp_path, "q8_0").tensors}
    assert (tensors["blk.0.attn_output.weight"], tensors["blk.0.ffn_up.weight"]) == ("Q8_0", "F16")


def test_tokens_keep_their_numbers_and_kinds(tmp_path: Path) -> None:
    fields = written(merged(tmp_path), tmp_path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    assert (tokens[:6], kinds[:6]) == (["a", "b", "ab", "<end>", "<tool>", "[PAD5]"], [1, 1, 1, 3, 4, 5])
    assert (len(tokens), fields["tokenizer.ggml.eos_token_id"].contents()) == (VOCABULARY, 3)


def test_another_architecture_names_the_way_that_is_left(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Gemma3ForCausalLM.*--to merged"):
        written(merged(tmp_path, architectures=["Gemma3ForCausalLM"]), tmp_path)


def test_another_way_to_stretch_the_context_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="yarn"):
        written(merged(tmp_path, rope_scaling={"type": "yarn", "factor": 4}), tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"pre_tokenizer": {"type": "Metaspace"}},
        {"pre_tokenizer": {**PLAIN, "add_prefix_space": True}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "x"}}, PLAIN]}},
        {"model": {"type": "Unigram", "vocab": {}}},
        {"model": {}},
    ],
)
def test_a_tokenizer_that_would_be_read_otherwise_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="tokenizer"):
        written(merged(tmp_path, {**TOKENIZER, **change}), tmp_path)


def test_without_its_package_the_command_to_install_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match=r"pip install 'hermes-rl\[gguf\]'"):
        write_gguf(merged(tmp_path), tmp_path / "small.gguf", None, lambda *_: None)
