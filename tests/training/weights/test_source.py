from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.paths import rl_home
from hermes_rl.training.weights.download import Remote
from hermes_rl.training.weights.source import find_source
from tests.training.weights.run_files import run_folder, saved

SETTINGS = {"base_url": "http://127.0.0.1:9", "base_model": "my/model"}


def test_a_run_is_found_by_its_name() -> None:
    run_folder(
        rl_home() / "runs" / "by-name", [saved(3, state="tinker://m/weights/3")], name="by-name", settings=SETTINGS
    )
    source = find_source("by-name")
    remote = Remote("tinker://m/sampler_weights/3", "tinker://m/weights/3", "http://127.0.0.1:9")
    assert (source.name, source.location, source.base_model) == ("by-name", remote, "my/model")


def test_a_run_is_found_by_its_folder(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "words", [saved(3), saved(4)], settings=SETTINGS)
    found = find_source(str(folder), step=3)
    assert found.saved is not None and found.saved.step == 3


def test_the_engines_address_may_be_another_now(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "words", [saved(3)], settings=SETTINGS)
    location = find_source(str(folder), base_url="http://127.0.0.1:10").location
    assert isinstance(location, Remote) and location.base_url == "http://127.0.0.1:10"


def finished_run(folder: Path, *more: dict[str, Any]) -> Path:
    """A run that exported its weights at step 3; `more` are later checkpoints."""
    run_folder(folder, [saved(3, final=True), *more], settings=SETTINGS)
    (folder / "weights").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (folder / "weights" / name).write_text("{}")
    return folder


def test_a_finished_runs_weights_are_read_from_its_folder(tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "words")
    assert find_source(str(folder)).location == folder / "weights"


def test_weights_of_another_step_are_not_taken_for_the_exported_ones(tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "words", saved(4))
    assert isinstance(find_source(str(folder), step=4).location, Remote)


def test_a_named_engine_is_asked_although_the_weights_are_here(tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "words")
    assert isinstance(find_source(str(folder), base_url="http://127.0.0.1:10").location, Remote)


def test_a_peft_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    source = find_source(str(tmp_path))
    assert (source.location, source.run) == (tmp_path, None)


def test_a_tinker_path_is_asked_for_at_the_engine() -> None:
    source = find_source("tinker://model_1/sampler_weights/one", base_url="http://127.0.0.1:9")
    assert (source.name, source.location) == (
        "model_1-sampler_weights-one",
        Remote("tinker://model_1/sampler_weights/one", None, "http://127.0.0.1:9"),
    )


def test_a_key_is_read_where_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TINKER_KEY", "tml-secret")
    location = find_source("tinker://run/weights/one", api_key="env:MY_TINKER_KEY").location
    assert isinstance(location, Remote) and (location.state, location.api_key) == (
        "tinker://run/weights/one",
        "tml-secret",
    )


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"api_key": "env:MY_TINKER_KEY"}, "tml-secret"),
        ({"api_key": "**********"}, None),
        ({"api_key": "env:NOT_SET_ANYWHERE", "base_url": "http://127.0.0.1:9"}, None),
    ],
)
def test_a_runs_key_is_used_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], key: str | None
) -> None:
    monkeypatch.setenv("MY_TINKER_KEY", "tml-secret")
    location = find_source(str(run_folder(tmp_path / "words", [saved(3)], settings=settings))).location
    assert isinstance(location, Remote) and location.api_key == key


def test_a_name_of_nothing_says_what_could_be_named() -> None:
    with pytest.raises(ConfigError, match=r"no weights found for stf: give a run .* export sft"):
        find_source("stf")
