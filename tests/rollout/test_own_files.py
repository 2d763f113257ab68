"""Which files of an environment its sandboxes hide."""

import sys
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from pydantic import BaseModel

from hermes_rl.rollout.own_files import environment_files, item_files


class Settings(BaseModel):
    dataset_name: str = "openai/gsm8k"
    system_prompt: str = "Work in /usr/lib.\nThen stop."
    agent_command: str | None = None
    files: dict[str, Path] = {}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def load(file: Path, monkeypatch: pytest.MonkeyPatch) -> type:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("class Env: ...\n")
    spec = spec_from_file_location("loaded_environment", file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "loaded_environment", module)
    spec.loader.exec_module(module)
    environment = module.Env
    assert isinstance(environment, type)
    return environment


def test_the_folder_of_an_environment_is_hidden_with_its_data(
    tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = load(tmp_path / "envs" / "words_env.py", monkeypatch)
    assert environment_files(environment, Settings()) == [tmp_path / "envs", here]


def test_links_in_the_folder_are_hidden_where_they_lead(
    tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = load(tmp_path / "envs" / "words_env.py", monkeypatch)
    (tmp_path / "answers.jsonl").touch()
    (tmp_path / "envs" / "data.jsonl").symlink_to(tmp_path / "answers.jsonl")
    assert environment_files(environment, Settings()) == [tmp_path / "answers.jsonl", tmp_path / "envs", here]


def test_a_package_is_hidden_from_its_root(tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = load(tmp_path / "site-packages" / "mine" / "envs" / "words_env.py", monkeypatch)
    for folder in ("mine", "mine/envs"):
        (tmp_path / "site-packages" / folder / "__init__.py").touch()
    assert environment_files(environment, Settings()) == [here, tmp_path / "site-packages" / "mine"]


def test_a_module_among_other_packages_is_hidden_alone(
    tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = load(tmp_path / "site-packages" / "words_env.py", monkeypatch)
    compiled = tmp_path / "site-packages" / "__pycache__" / "words_env.cpython-313.pyc"
    compiled.parent.mkdir(exist_ok=True)
    compiled.touch()
    found = environment_files(environment, Settings())
    assert {here, tmp_path / "site-packages" / "words_env.py", compiled} <= set(found)
    assert tmp_path / "site-packages" not in found


def test_paths_in_the_configuration_are_hidden(tmp_path: Path, here: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "prices.csv").touch()
    settings = Settings(dataset_name=str(tmp_path / "tasks"), files={"a": tmp_path / "prices.csv"})
    assert environment_files(object, settings) == [here, tmp_path / "prices.csv", tmp_path / "tasks"]


@pytest.mark.parametrize("needed", ["/", "/usr", "/usr/bin", "/usr/lib", "/usr/local", "/usr/bin/env"])
def test_what_programs_need_is_never_hidden(needed: str, here: Path) -> None:
    assert environment_files(object, Settings(dataset_name=needed, agent_command=str(here))) == [here]
    assert item_files({"path": Path(needed)}) == []


def test_the_paths_of_an_item_are_hidden(tmp_path: Path) -> None:
    @dataclass
    class Task:
        name: str
        folder: Path

    assert item_files({"tasks": [Task("one", tmp_path)], "note": str(tmp_path / "text")}) == [tmp_path]
