import json
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.training.engines.skyrl.model_check import check_model

QWEN = {"architectures": ["Qwen3ForCausalLM"], "dtype": "float32"}


def folder_of(path: Path, settings: dict[str, Any], weights: str = "model.safetensors") -> str:
    (path / "config.json").write_text(json.dumps(settings))
    (path / weights).touch()
    return str(path)


def test_a_folder_is_known_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(tmp_path, QWEN)
    monkeypatch.chdir(tmp_path.parent)
    model = check_model(tmp_path.name)
    assert (model.name, model.warning) == (str(tmp_path.resolve()), None)


def test_a_name_on_the_hub_is_left_as_it_is() -> None:
    assert check_model("Qwen/Qwen3-0.6B").name == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize("given", ["./nowhere", "/no/where", "nowhere"])
def test_a_folder_that_is_not_there_is_named(given: str) -> None:
    with pytest.raises(ConfigError, match="neither a folder nor"):
        check_model(given)


def test_a_folder_without_config_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json; give a folder with"):
        check_model(str(tmp_path))


def test_a_config_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="is not valid JSON"):
        check_model(str(tmp_path))


def test_a_config_that_is_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="is not a JSON object"):
        check_model(str(tmp_path))


def test_weights_of_another_format_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no \*\.safetensors"):
        check_model(folder_of(tmp_path, QWEN, "model.gguf"))


def test_a_kind_of_model_that_skyrl_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json has MistralForCausalLM"):
        check_model(folder_of(tmp_path, {"architectures": ["MistralForCausalLM"]}))


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_a_model_of_half_precision_is_warned_of(tmp_path: Path, key: str) -> None:
    warning = check_model(folder_of(tmp_path, {"architectures": ["LlamaForCausalLM"], key: "bfloat16"})).warning
    assert warning is not None and "bfloat16" in warning
