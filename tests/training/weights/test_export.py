import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hermes_rl.core.errors import ConfigError
from hermes_rl.training.weights.adapter import Adapter
from hermes_rl.training.weights.export import ExportedWeights, ExportRequest, WeightFormat, export_weights
from hermes_rl.training.weights.run_metadata import read_run
from hermes_rl.training.weights.source import WeightSource
from tests.support.adapters import random_adapter
from tests.support.model_folders import small_model
from tests.training.weights.run_files import run_folder, saved


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return small_model(tmp_path / "base")


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Adapter:
    return Adapter(random_adapter(base, tmp_path / "adapter", seed=1))


def exported(adapter: Adapter, form: WeightFormat, out: Path, **wish: Any) -> ExportedWeights:
    return export_weights(WeightSource("words", adapter.folder), adapter, ExportRequest(form, out, **wish))


def card_of(adapter: Adapter, run: Path, out: Path) -> str:
    facts = read_run(run)
    source = WeightSource(facts.name, adapter.folder, facts, facts.weights(None), str(facts.settings["base_model"]))
    export_weights(source, adapter, ExportRequest(WeightFormat.PEFT, out))
    return (out / "README.md").read_text()


def test_peft_is_the_adapter_its_tokenizer_and_a_card(adapter: Adapter, tmp_path: Path) -> None:
    done = exported(adapter, WeightFormat.PEFT, tmp_path / "out")
    files = ("README.md", "adapter_config.json", "adapter_model.safetensors", "tokenizer.json")
    assert (done.files, done.size) == (files, sum((tmp_path / "out" / name).stat().st_size for name in files))


def test_an_adapter_of_a_model_that_is_not_at_hand_goes_without_its_tokenizer(adapter: Adapter, tmp_path: Path) -> None:
    done = exported(adapter, WeightFormat.PEFT, tmp_path / "out", base_model="some/model")
    assert "tokenizer.json" not in done.files


def test_merged_is_a_whole_model_and_a_card(adapter: Adapter, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    wish = ExportRequest(WeightFormat.MERGED, tmp_path / "out")
    done = export_weights(
        WeightSource("words", adapter.folder), adapter, wish, lambda done, total, _: told.append((done, total))
    )
    assert done.files == ("README.md", "config.json", "model.safetensors", "tokenizer.json")
    assert told[-1][0] == told[-1][1] == len(told)


def test_a_folder_that_is_there_is_not_written_over(adapter: Adapter, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="--overwrite"):
        exported(adapter, WeightFormat.PEFT, tmp_path / "out")


def test_unless_that_was_asked_for(adapter: Adapter, tmp_path: Path) -> None:
    for _ in range(2):
        exported(adapter, WeightFormat.PEFT, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "README.md").exists()


def test_an_export_that_fails_leaves_nothing_and_takes_nothing(adapter: Adapter, tmp_path: Path) -> None:
    exported(adapter, WeightFormat.PEFT, tmp_path / "out")
    (tmp_path / "base" / "model.safetensors").write_bytes(b"torn")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="not a complete safetensors"):
        exported(adapter, WeightFormat.MERGED, tmp_path / "out", overwrite=True)
    assert (sorted(tmp_path.iterdir()), (tmp_path / "out" / "adapter_config.json").exists()) == (before, True)


def test_a_base_model_that_is_nowhere_is_asked_for(adapter: Adapter, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--base-model"):
        exported(adapter, WeightFormat.MERGED, tmp_path / "out", base_model=str(tmp_path / "gone"))


def test_a_base_model_that_the_hub_does_not_give_is_asked_for(adapter: Adapter, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot download no-such/model: .*--base-model"):
        exported(adapter, WeightFormat.MERGED, tmp_path / "out", base_model="no-such/model")


def test_the_card_tells_where_the_weights_came_from(adapter: Adapter, tmp_path: Path) -> None:
    settings = {"base_model": "some/model", "loss": "ppo", "learning_rate": 4e-4, "api_key": "env:KEY", "kl_coef": 0.0}
    metrics = [{"step": step, "reward/mean": step / 20, "reward/environment/words": 1} for step in range(1, 17)]
    run = run_folder(
        tmp_path / "words", [saved(16, final=True)], metrics, name="words", settings=settings, hermes_rl="0.8.0"
    )
    card = card_of(adapter, run, tmp_path / "out")
    for told in (
        "| run | words |",
        "| step | 16, policy version 17, the last of the run |",
        "| environments | words |",
        "`some/model`",
        "rank 8, alpha 32",
        "| 1 to 2 | 0.075 |",
        "| 15 to 16 | 0.775 |",
        "| `loss` | ppo |",
        "hermes-rl 0.8.0",
        "licence applies",
    ):
        assert told in card
    assert "KEY" not in card


def test_the_cards_head_is_what_hubs_read(adapter: Adapter, tmp_path: Path) -> None:
    run = run_folder(tmp_path / "words", [saved(1)], settings={"base_model": "some/model"})
    head = yaml.safe_load(card_of(adapter, run, tmp_path / "out").split("---")[1])
    assert (head["base_model"], head["library_name"]) == ("some/model", "peft")


def test_the_licence_is_the_one_that_the_base_models_card_names(adapter: Adapter, base: Path, tmp_path: Path) -> None:
    (base / "README.md").write_text("---\nlicense: llama3.2\n---\n# A model\n")
    exported(adapter, WeightFormat.MERGED, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert yaml.safe_load(card.split("---")[1])["license"] == "llama3.2"
    assert "licence, llama3.2, applies" in card


def test_peft_names_the_layers_for_whoever_loads_it(adapter: Adapter, tmp_path: Path) -> None:
    exported(adapter, WeightFormat.PEFT, tmp_path / "out")
    told = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert told["target_modules"] == sorted("q_proj k_proj v_proj o_proj gate_proj up_proj down_proj".split())
