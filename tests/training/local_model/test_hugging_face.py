"""A GGUF file comes back as the folder that it was made from."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from hermes_rl.core.errors import ConfigError
from hermes_rl.training.local_model.gguf_reader import GgufFile
from hermes_rl.training.local_model.hugging_face import convert_gguf
from hermes_rl.training.weights.adapter import Adapter
from hermes_rl.training.weights.gguf_file import write_gguf
from hermes_rl.training.weights.merge import MergedModel
from hermes_rl.training.weights.model_folder import ModelFolder
from hermes_rl.training.weights.tensors import TensorFile, to_float32
from tests.support.adapters import random_adapter
from tests.support.loadable_model import loadable_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> MergedModel:
    place = tmp_path_factory.mktemp("model")
    base = loadable_model(place / "base")
    return MergedModel(ModelFolder(base), Adapter(random_adapter(base, place / "adapter", seed=1)))


@pytest.fixture(scope="module")
def converted(model: MergedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("converted")
    write_gguf(model, place / "model.gguf", "f32", lambda *_: None)
    return convert_gguf(place / "model.gguf", place / "folder")


def test_the_weights_are_the_same_to_the_bit(model: MergedModel, converted: Path) -> None:
    written = TensorFile(converted / "model.safetensors")
    assert {name: bytes(written[name].data) for name in written.infos} == {
        name: bytes(model.tensor(name).data) for name in model.infos
    }


def test_packed_weights_are_within_half_a_step_of_the_packing(model: MergedModel, tmp_path: Path) -> None:
    write_gguf(model, tmp_path / "model.gguf", "q8_0", lambda *_: None)
    written = TensorFile(convert_gguf(tmp_path / "model.gguf", tmp_path / "folder") / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    exact = to_float32(model.tensor(name))
    # A block of 32 values has 127 steps to its largest, whose size is rounded to half precision.
    assert abs(to_float32(written[name]) - exact).max() <= abs(exact).max() / 127 * 0.51


def test_the_configuration_is_the_models_own(model: MergedModel, converted: Path) -> None:
    config = json.loads((converted / "config.json").read_text())
    own = {name: value for name, value in model.config.items() if name != "rms_norm_eps"}
    assert {name: config[name] for name in own} == own
    assert config["rms_norm_eps"] == pytest.approx(model.config["rms_norm_eps"])


@pytest.mark.parametrize("text", ["12345", "a  42 hi", "x1\n 2 3\t4", "<|im_start|>user\nhi 7<|im_end|>\n"])
def test_text_becomes_the_same_tokens(model: MergedModel, converted: Path, text: str) -> None:
    before, after = (Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in (model.base.path, converted))
    assert after.encode(text).ids == before.encode(text).ids


def test_each_digit_is_split_from_the_blanks_before_it(converted: Path) -> None:
    words = Tokenizer.from_file(str(converted / "tokenizer.json")).pre_tokenizer.pre_tokenize_str("a  42")
    assert [word for word, _ in words] == ["a", "ĠĠ", "4", "2"]


def test_a_folder_that_exists_is_kept(converted: Path, tmp_path: Path) -> None:
    assert convert_gguf(tmp_path / "missing.gguf", converted) == converted


def test_a_truncated_file_is_refused(converted: Path, tmp_path: Path) -> None:
    whole = (converted.parent / "model.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:2000])
    with pytest.raises(ConfigError, match="is not a complete GGUF file"):
        GgufFile(tmp_path / "cut.gguf")


def test_missing_tensors_are_refused_and_leave_no_folder(converted: Path, tmp_path: Path) -> None:
    whole = (converted.parent / "model.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:-5000])
    with pytest.raises(ConfigError, match="is not a complete GGUF file"):
        convert_gguf(tmp_path / "cut.gguf", tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
