"""What a run requires: each thing only for what needs it."""

import sys
from pathlib import Path

import pytest

from hermes_rl.orchestration import requirements as requirements_module
from hermes_rl.orchestration.keys import key_names, set_key
from hermes_rl.orchestration.requirements import missing_for, missing_for_toolset, requirements


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    for name in key_names():
        monkeypatch.delenv(name, raising=False)


def test_without_any_key_a_run_on_an_engine_of_ones_own_misses_nothing() -> None:
    assert missing_for() == ()


def test_hosted_tinker_misses_its_key_and_is_told_the_line_that_sets_it() -> None:
    (missing,) = missing_for(["TINKER_API_KEY", "WANDB_API_KEY"])
    assert missing.fix == "hermes-rl config set TINKER_API_KEY"
    assert "preset tinker" in missing.needed_by


def test_a_key_in_the_file_meets_the_requirement() -> None:
    set_key("TINKER_API_KEY", "value")
    assert missing_for(["TINKER_API_KEY"]) == ()


def test_a_run_is_never_held_up_for_the_key_of_wandb() -> None:
    assert missing_for(["WANDB_API_KEY"]) == ()


def test_a_key_of_ones_own_that_a_configuration_names_is_required() -> None:
    assert [one.name for one in missing_for(["OWN_KEY", "OWN_KEY"])] == ["OWN_KEY"]


def test_the_toolset_is_not_there_on_an_older_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 1))
    assert [one.name for one in missing_for_toolset()] == ["Python >= 3.11"]


def test_a_package_that_is_not_installed_is_missing_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements_module, "PACKAGES", {"no_such_package": "train"})
    assert [one.fix for one in missing_for_toolset()] == ["pip install 'hermes-rl[train]'"]


def test_every_requirement_says_what_needs_it_and_what_meets_it() -> None:
    assert all(one.needed_by and one.fix for one in requirements())
