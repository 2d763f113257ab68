"""An environment whose base stands in a file near it loads by its path, and leaves nothing behind for others."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.environment.loading.loader import load_environment
from tests.orchestration.discovery.writing import written

BASE = "from environments.hermes_base_env import HermesAgentBaseEnv\nclass MyBase(HermesAgentBaseEnv):\n    METHODS\n"


def loaded(folder: Path, files: dict[str, str], file: str = "my_env.py") -> Any:
    written(folder, files)
    return load_environment(f"{folder / file}:Mine")


@pytest.mark.parametrize(
    ("statement", "base"),
    [
        ("from my_base import MyBase", "MyBase"),
        ("import my_base", "my_base.MyBase"),
        ("import my_base as other", "other.MyBase"),
        ("from my_base import *", "MyBase"),
        ("from .my_base import MyBase as B", "B"),
        ("from . import my_base", "my_base.MyBase"),
    ],
)
def test_a_base_beside_the_file_is_loaded(tmp_path: Path, statement: str, base: str) -> None:
    mine = loaded(tmp_path, {"my_base.py": BASE, "my_env.py": f"{statement}\nclass Mine({base}): ...\n"})
    assert [one.__name__ for one in mine.__mro__[:2]] == ["Mine", "MyBase"]


@pytest.mark.parametrize(
    ("statement", "base"),
    [
        ("from ..bases.my_base import MyBase", "MyBase"),
        ("from .. import MyBase", "MyBase"),
        ("from ..bases import my_base", "my_base.MyBase"),
        ("import pkg.bases.my_base", "pkg.bases.my_base.MyBase"),
        ("import pkg.bases.my_base as b", "b.MyBase"),
        ("from pkg import MyBase", "MyBase"),
        ("from pkg.bases import my_base as b", "b.MyBase"),
    ],
)
def test_a_base_in_the_same_package_is_loaded(tmp_path: Path, statement: str, base: str) -> None:
    files = {
        "pkg/__init__.py": "from .bases.my_base import MyBase\n",
        "pkg/bases/__init__.py": "",
        "pkg/bases/my_base.py": BASE,
        "pkg/envs/__init__.py": "",
        "pkg/envs/my_env.py": f"{statement}\nclass Mine({base}): ...\n",
    }
    assert loaded(tmp_path, files, "pkg/envs/my_env.py").__mro__[1].__name__ == "MyBase"


def test_nothing_is_left_that_others_would_import(tmp_path: Path) -> None:
    before, path = set(sys.modules), list(sys.path)
    loaded(tmp_path, {"my_base.py": BASE, "my_env.py": "import my_base\nclass Mine(my_base.MyBase): ...\n"})
    assert sys.path == path
    assert all(name.startswith("hermes_rl_environment_my_") for name in set(sys.modules) - before)


def test_two_folders_may_have_modules_of_the_same_name(tmp_path: Path) -> None:
    mine = "from my_base import MyBase, WHICH\nclass Mine(MyBase):\n    which = WHICH\n"
    for which in ("a", "b"):
        files = {"my_base.py": f"{BASE}WHICH = {which!r}\n", "my_env.py": mine}
        assert loaded(tmp_path / which, files).which == which


def test_an_import_inside_a_function_is_served_later(tmp_path: Path) -> None:
    mine = f"{BASE}class Mine(MyBase):\n    def late(self):\n        import words\n        return words.ALL\n"
    assert loaded(tmp_path, {"words.py": "ALL = 3\n", "my_env.py": mine}).late(None) == 3


def test_a_module_beside_the_file_hides_none_of_pythons(tmp_path: Path) -> None:
    mine = f"import random\n{BASE}class Mine(MyBase):\n    random = random\n"
    import random

    assert loaded(tmp_path, {"random.py": "raise SystemExit\n", "my_env.py": mine}).random is random


def test_inside_a_package_an_installed_module_comes_before_one_beside_the_file(tmp_path: Path) -> None:
    import yaml

    mine = f"import yaml\n{BASE}class Mine(MyBase):\n    yaml = yaml\n"
    files = {"__init__.py": "", "yaml.py": "raise SystemExit\n", "my_env.py": mine}
    assert loaded(tmp_path, files).yaml is yaml


def test_a_folder_of_data_hides_no_installed_package(tmp_path: Path) -> None:
    import yaml

    mine = f"import yaml\n{BASE}class Mine(MyBase):\n    yaml = yaml\n"
    assert loaded(tmp_path, {"yaml/readme.txt": "", "my_env.py": mine}).yaml is yaml


def test_files_that_import_each_other_load_as_python_would(tmp_path: Path) -> None:
    files = {
        "my_base.py": f"{BASE}import words\n",
        "words.py": "import my_base\ndef base():\n    return my_base.MyBase\n",
        "my_env.py": "from my_base import MyBase\nimport words\nclass Mine(MyBase):\n    base = words.base()\n",
    }
    mine = loaded(tmp_path, files)
    assert mine.base is mine.__mro__[1]


def test_annotations_of_a_config_beside_the_file_are_resolved(tmp_path: Path) -> None:
    config = """
    from __future__ import annotations
    from hermes_rl import HermesAgentEnvConfig
    class Part(HermesAgentEnvConfig):
        depth: int = 1
    class Config(HermesAgentEnvConfig):
        part: Part | None = None
    """
    mine = f"from my_config import Config\n{BASE}class Mine(MyBase):\n    env_config_cls = Config\n"
    cls = loaded(tmp_path, {"my_config.py": config, "my_env.py": mine})
    assert cls.env_config_cls(part={"depth": 2}).part.depth == 2


async def test_a_cpu_reward_beside_the_file_runs_in_its_process(tmp_path: Path) -> None:
    scoring = """
    from hermes_rl import cpu_reward
    from words import FACTOR
    @cpu_reward(timeout=30)
    def score(n):
        return n * FACTOR
    """
    mine = f"from scoring import score\n{BASE}class Mine(MyBase):\n    score = staticmethod(score)\n"
    cls = loaded(tmp_path, {"words.py": "FACTOR = 3\n", "scoring.py": scoring, "my_env.py": mine})
    assert await cls.score(2) == 6


def test_an_environment_of_atroposlib_is_told_as_such(tmp_path: Path) -> None:
    # As where atroposlib is installed: a class of one of its modules.
    made = "Base = type('BaseEnv', (), {'__module__': 'atroposlib.envs.base'})\nclass Mine(Base): ...\n"
    with pytest.raises(ConfigError, match="is an atroposlib environment: start it with"):
        loaded(tmp_path, {"my_env.py": made})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("from my_base import Nothing\n", "cannot be loaded: ImportError: cannot import name 'Nothing'"),
        ("from nowhere_at_all import X\n", "cannot be loaded: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("from .nowhere import X\n", "ImportError: .nowhere is imported, but there is no such module near"),
        ("import bad\n", "cannot be loaded: SyntaxError"),
        ("from hermes_rl import HermesAgentBaseEnv\nclass Mine(HermesAgentBaseEnv): ...\n",
         "Mine of {0} does not define compute_reward, format_prompt"),
        ("from my_base import MyBase\n", "has no environment class 'Mine'; it has: none"),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded_is_told(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        loaded(tmp_path, {"my_base.py": BASE, "bad.py": "x =\n", "my_env.py": text})
    assert told.format(tmp_path / "my_env.py") in str(raised.value)


def test_a_bundled_name_with_a_class_is_the_bundled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "terminal_test.py").write_text("raise RuntimeError('a file of the working directory')")
    monkeypatch.chdir(tmp_path)
    assert load_environment("terminal_test:TerminalTestEnv").__name__ == "TerminalTestEnv"


def test_a_file_that_changes_within_a_second_runs_as_it_is_now(tmp_path: Path) -> None:
    """Python's own bytecode is valid for every source of the same size and second."""
    file = tmp_path / "my_env.py"
    found = []
    for level in (5, 6):
        written(tmp_path, {"my_env.py": f"{BASE}\nclass Mine(MyBase):\n    level = {level}\n"})
        os.utime(file, (1_000_000, 1_000_000))
        found.append(vars(load_environment(f"{file}:Mine"))["level"])
    assert found == [5, 6]
