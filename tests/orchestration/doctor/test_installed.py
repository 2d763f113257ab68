"""Python, our own version, extras and packages."""

import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from hermes_rl.orchestration.doctor import installed
from hermes_rl.orchestration.doctor.finding import FindingState

ROOT = Path(__file__).parents[3]


def requires(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(metadata, "requires", lambda _: list(lines))


def test_every_extra_that_is_in_use_is_looked_at() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(installed.EXTRAS) == set(extras) - {"all"}


def test_a_python_that_is_too_old_is_missing_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 0))
    (found,) = installed.python()
    assert found.state is FindingState.MISSING
    assert found.fix is not None and "--python 3.11" in found.fix


def test_this_python_will_do() -> None:
    assert [one.state for one in installed.python()] == [FindingState.OK]


def test_an_extra_that_every_run_needs_is_missing_with_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    requires(monkeypatch, "no-such-package>=1.0; extra == 'train'")
    (found,) = installed.extras()
    assert (found.check, found.state) == ("extra train", FindingState.MISSING)
    assert found.fix == "pip install -U 'hermes-rl[train]'"


def test_an_extra_that_few_need_is_only_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    requires(monkeypatch, 'no-such-package>=1.0; extra == "daytona"')
    (found,) = installed.extras()
    assert found.state is FindingState.ABSENT
    assert "no-such-package is not installed; for the sandbox backend daytona" in found.what


def test_a_package_that_is_too_old_for_its_extra_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    requires(monkeypatch, "click[x]>=900.1,<901; python_version > '3' and extra == 'web'")
    (found,) = installed.extras()
    assert found.state is FindingState.WARN
    assert "is older than 900.1" in found.what


def test_a_package_that_is_new_enough_is_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    requires(monkeypatch, "click>=8.0; extra == 'web'", "pydantic; extra == 'web'", "never>=1; extra == 'unheard_of'")
    assert [one.state for one in installed.extras()] == [FindingState.OK]


def test_versions_are_compared_as_numbers() -> None:
    assert installed._release("5.9.0") < installed._release("5.19")
    assert installed._release("2.0.0rc1") == installed._release("2")


def test_a_package_that_does_not_load_is_told_with_the_last_line_of_its_complaint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken_wheel.py").write_text("raise ImportError('libfoo.so.1: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(installed, "PACKAGES", {"broken_wheel": "tokens"})
    (found,) = installed.package_imports()
    assert found.state is FindingState.MISSING
    assert found.what.endswith("ImportError: libfoo.so.1: cannot open shared object file")


def test_a_package_that_takes_for_ever_to_load_is_no_sickness(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "slow_wheel.py").write_text("import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(installed, "PACKAGES", {"slow_wheel": "tokens"})
    monkeypatch.setattr(installed, "_LOAD_DEADLINE_S", 0.2)
    assert [one.state for one in installed.package_imports()] == [FindingState.WARN]


def test_a_version_that_pip_does_not_know_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "__version__", "99.0")
    (found,) = installed.hermes_rl()
    assert found.state is FindingState.WARN
    assert "hermes-rl 99.0 runs" in found.what
