"""Installed packages are environments like any other: found by name, listed, removed."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from hermes_rl.cli.env import env
from hermes_rl.core.errors import ConfigError
from hermes_rl.interop.verifiers import packages
from hermes_rl.orchestration.discovery.discover import discover
from tests.interop.stub_package import install_stub


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("source", "name"),
    [("wordle", "wordle"), ("Word_Game==1.2", "word-game"), ("math[extra]>=1,<2", "math"), ("a @ file", "a")],
)
def test_a_requirement_names_its_package(source: str, name: str) -> None:
    assert packages.package_name(source) == name


def test_a_folder_is_named_by_its_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "my_words"\n')
    assert packages.package_name(str(tmp_path)) == "my-words"


@pytest.mark.parametrize("source", ["no/such/folder", "--index-url", "tests"])
def test_what_is_neither_is_refused(source: str) -> None:
    with pytest.raises(ConfigError):
        packages.package_name(source)


def test_an_installed_package_is_listed_and_its_name_works_anywhere() -> None:
    install_stub()
    found = {one.name: one for one in discover().found}
    assert found["faulty"].class_name == "FaultyEnv"
    assert found["faulty"].kind == "hermes"


def test_a_removed_package_is_gone() -> None:
    install_stub()
    assert CliRunner().invoke(env, ["remove", "faulty"]).exit_code == 0
    assert not packages.environment_file("faulty").exists()
    assert not packages.venv_of("faulty").exists()
    assert "faulty" not in {one.name for one in discover().found}
