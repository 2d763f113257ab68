"""Where environments are looked for, and how one is found by what a person calls it."""

import os
from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.environment.loading.loader import load_environment
from hermes_rl.orchestration.discovery.discover import discover
from hermes_rl.orchestration.discovery.lookup import find_environment
from hermes_rl.orchestration.discovery.types import Discovery, EnvironmentSource
from tests.orchestration.discovery.writing import written

MINE = "from hermes_rl import HermesAgentBaseEnv\nclass Mine(HermesAgentBaseEnv):\n    METHODS\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HERMES_RL_ENVIRONMENTS", raising=False)
    (tmp_path / "home" / "rl").mkdir(parents=True)
    return tmp_path / "home" / "rl"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages; one of them announces environments."""
    folder = tmp_path / "site-packages"
    metadata = "Metadata-Version: 2.1\nName: their-pack\nVersion: 1.0\n"
    points = """
    [hermes_rl.environments]
    whole = their_pack.envs
    one = their_pack.single:Single
    again = their_pack:Exported
    lost = their_pack.gone:Gone
    """
    written(
        folder,
        {
            "their_pack-1.0.dist-info/METADATA": metadata,
            "their_pack-1.0.dist-info/entry_points.txt": points,
            "their_pack/__init__.py": "from .exported import Exported\n",
            "their_pack/base.py": MINE.replace("Mine", "Base"),
            "their_pack/exported.py": "from .base import Base\nclass Exported(Base): ...\nclass C(Base): ...\n",
            "their_pack/single.py": "from .base import Base\nclass Single(Base): ...\nclass Unannounced(Base): ...\n",
            "their_pack/envs/__init__.py": "",
            "their_pack/envs/deep/a_env.py": "from their_pack.base import Base\nclass A(Base): ...\n",
        },
    )
    monkeypatch.syspath_prepend(str(folder))
    return folder


def of(source: EnvironmentSource, discovery: Discovery) -> dict[str, str]:
    return {one.class_name: one.name for one in discovery.found if one.source is source}


def test_the_users_folder_the_listed_ones_and_those_of_the_variable_are_looked_at(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(home, {"environments/a_env.py": MINE, "below/b_env.py": MINE})
    written(tmp_path, {"c/c_env.py": MINE, "d/d_env.py": MINE, "e/e_env.py": MINE})
    (home / "environments.txt").write_text(f"# mine\n\nbelow\n{tmp_path / 'c'}\n{tmp_path / 'gone'}\n")
    monkeypatch.setenv("HERMES_RL_ENVIRONMENTS", os.pathsep.join([str(tmp_path / "d"), str(tmp_path / "e/e_env.py")]))
    discovery = discover()
    assert [one.name for one in discovery.found if one.source is EnvironmentSource.USER] == ["a", "b", "c", "d", "e"]
    (broken,) = discovery.broken
    assert "environments.txt names it, but there is no such folder" in broken.why


def test_installed_packages_announce_environments(site: Path) -> None:
    discovery = discover()
    assert of(EnvironmentSource.INSTALLED, discovery) == {"A": "a", "Single": "single", "Exported": "exported"}
    (broken,) = discovery.broken
    assert "their-pack has an entry point for the environment 'lost'" in broken.why


def test_installed_environments_can_be_loaded_by_their_reference(site: Path) -> None:
    for one in discover().found:
        if one.source is EnvironmentSource.INSTALLED:
            assert load_environment(one.reference).__name__ == one.class_name


def test_a_module_and_a_class_name_an_environment(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, {"mine/deep.py": MINE})
    monkeypatch.chdir(tmp_path)
    for reference in ("their_pack.single:Unannounced", "their_pack.exported:C", "mine.deep:Mine"):
        class_name = reference.partition(":")[2]
        assert find_environment(reference).class_name == class_name
        assert load_environment(reference).__name__ == class_name
    with pytest.raises(ConfigError, match=r"no environment is named 'their_pack\.gone:Gone'"):
        find_environment("their_pack.gone:Gone")


def test_a_base_in_an_installed_package_is_followed(site: Path, home: Path) -> None:
    written(home, {"environments/mine_env.py": "import their_pack.base as b\nclass Mine(b.Base): ...\n"})
    assert of(EnvironmentSource.USER, discover()) == {"Mine": "mine"}


@pytest.mark.parametrize("name", ["gsm8k", "gsm8k_env", "gsm8k_tinker"])
def test_an_environment_is_found_by_its_names(name: str) -> None:
    found = find_environment(name)
    assert found.name == "gsm8k"
    assert find_environment(found.id) == found


def test_a_file_anywhere_is_found_by_its_path(tmp_path: Path) -> None:
    written(tmp_path, {"my_env.py": MINE})
    assert find_environment(str(tmp_path / "my_env.py")) == find_environment(f"{tmp_path / 'my_env.py'}:Mine")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("gsm9k", "no environment is named 'gsm9k'; did you mean 'gsm8k'?"),
        ("xyzzy", "known: append_log, gsm8k, harbor"),
        ("gsm8k@00000000", "'gsm8k' has no version '00000000'"),
        ("nowhere.py", "there is no file nowhere.py"),
        ("{0}/two.py", "has several environments: A, B; name one as"),
        ("{0}/two.py:C", "has no environment class 'C'; it has: A, B"),
        ("{0}/none.py", "has no subclass of HermesAgentBaseEnv"),
        ("{0}/bad.py", "bad.py:1: syntax error"),
        ("{0}", "is not a Python file|there is no file"),
        ("bad", "the environment 'bad' cannot be used"),
        ("twin", "several environments are named 'twin': choose one of twin.A"),
    ],
)
def test_what_is_not_found_is_told_with_the_next_step(home: Path, name: str, told: str) -> None:
    folder = home / "environments"
    two = MINE.replace("Mine", "A") + MINE.replace("Mine", "B")
    twins = two.replace("):\n", "):\n    name = 'twin'\n")
    written(folder, {"two.py": two, "none.py": "", "bad.py": "x =", "twins.py": twins})
    with pytest.raises(ConfigError) as raised:
        find_environment(name.format(folder))
    assert any(one in str(raised.value) for one in told.split("|")), raised.value
