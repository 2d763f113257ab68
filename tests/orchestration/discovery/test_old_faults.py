"""What the first rl_* tools got wrong about environments, one test a fault."""

from pathlib import Path

import pytest

from hermes_rl.environment.loading.loader import load_environment
from hermes_rl.orchestration.discovery.discover import discover
from tests.orchestration.discovery.writing import written

OURS = "from environments.hermes_base_env import HermesAgentBaseEnv\nclass {0}(HermesAgentBaseEnv):\n    METHODS\n"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HERMES_RL_ENVIRONMENTS", raising=False)


def test_only_direct_subclasses_of_base_env_were_listed(tmp_path: Path) -> None:
    text = OURS.format("First") + "class Second(First): ...\nclass Third(Second): ...\n"
    found = discover([written(tmp_path, {"a.py": text})]).found
    assert {one.class_name for one in found} == {"First", "Second", "Third"}


def test_any_class_called_base_env_counted_as_the_base(tmp_path: Path) -> None:
    assert discover([written(tmp_path, {"a.py": "class BaseEnv: ...\nclass Mine(BaseEnv): ...\n"})]).found == ()


def test_folders_below_were_not_looked_at(tmp_path: Path) -> None:
    assert len(discover([written(tmp_path, {"x/y/z/a_env.py": OURS.format("A")})]).found) == 1


def test_the_bundled_environments_were_not_looked_at() -> None:
    assert "terminal_test" in {one.name for one in discover().found}


def test_files_that_came_later_were_not_seen(tmp_path: Path) -> None:
    written(tmp_path, {"a_env.py": OURS.format("A")})
    before = discover([tmp_path])
    written(tmp_path, {"b_env.py": OURS.format("B")})
    assert (len(before.found), len(discover([tmp_path]).found)) == (1, 2)


def test_files_with_errors_were_passed_over_in_silence(tmp_path: Path) -> None:
    assert len(discover([written(tmp_path, {"a_env.py": "class A(:"})]).broken) == 1


def test_of_two_environments_with_one_name_only_the_first_could_be_chosen(tmp_path: Path) -> None:
    named = OURS.replace("    METHODS", "    name = 'same'\n    METHODS")
    found = discover([written(tmp_path, {"a.py": named.format("A"), "b.py": named.format("B")})]).found
    assert [one.name for one in found] == ["same.A", "same.B"]


def test_an_imported_parent_was_taken_for_the_environment(tmp_path: Path) -> None:
    written(tmp_path, {"a_base.py": OURS.format("A"), "b_env.py": "from a_base import A\nclass B(A): ...\n"})
    (found,) = discover([tmp_path / "b_env.py"]).found
    assert found.class_name == "B"
    assert load_environment(str(tmp_path / "b_env.py")).__name__ == "B"
