"""Whatever is listed as an environment can be selected; what cannot be is listed with why."""

import importlib.util
import json
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.orchestration.rl_tools import rl_list_environments, rl_select_environment
from tests.orchestration.discovery.writing import written

OURS = "from hermes_rl import HermesAgentBaseEnv\n"
ONE = f"{OURS}class One(HermesAgentBaseEnv):\n    METHODS\n"
RECIPE = """
    import random

    from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig, ScoredDataGroup

    class RecipeConfig(BaseEnvConfig):
        level: int = 3

    class RecipeEnv(BaseEnv):
        env_config_cls = RecipeConfig

        def load_dataset(self):
            self.rows = ["one", "two"]

        async def get_next_item(self):
            return random.choice(self.rows)

        def score_answer(self, row, answer):
            return float(row in answer)

        async def collect_trajectories(self, item):
            return None, []
"""
FILES = {
    "one_env.py": ONE,
    "recipe_env.py": RECIPE,
    "half_recipe_env.py": RECIPE[: RECIPE.index("        async def collect")],
    "half_env.py": f"{OURS}class Half(HermesAgentBaseEnv):\n    def format_prompt(self, item): ...\n",
    "base_env.py": f"from abc import ABC\n{OURS}class Base(HermesAgentBaseEnv, ABC): ...\n",
    "no_python_env.py": f"{ONE}def f(:\n",
    "no_package_env.py": f"import json\nimport no_such_package.inner as inner\n{ONE}",
    "no_package_near_env.py": f"from near import helper\n{ONE}",
    "near.py": "from no_such_package import helper\n",
    "optional_env.py": f"try:\n    import no_such_package\nexcept ImportError:\n    pass\n{ONE}",
    "by_path_env.py": (
        "import sys\nfrom pathlib import Path\nsys.path.insert(0, str(Path(__file__).parent / 'library'))\n"
        f"import only_by_path\n{ONE}"
    ),
    "by_near_path_env.py": f"import paths\nimport only_by_path\n{ONE}",
    "paths.py": "import sys\nfrom pathlib import Path\nsys.path.insert(0, str(Path(__file__).parent / 'library'))\n",
    "library/only_by_path.py": "",
    "late_env.py": f"import json\nLIMIT = 5\nimport no_such_package\n{ONE}",
    "two_env.py": f"{ONE}class Two(HermesAgentBaseEnv):\n    METHODS\n",
    "twin_a.py": f"{OURS}class Twin(HermesAgentBaseEnv):\n    name = 'twin'\n    METHODS\n",
    "twin_b.py": f"{OURS}class Twin(HermesAgentBaseEnv):\n    name = 'twin'\n    METHODS\n",
}
SELECTABLE = {"one", "recipe", "optional", "by_path", "by_near_path"} | {
    "two.One",
    "two.Two",
    "twin.twin_a.Twin",
    "twin.twin_b.Twin",
}
REASONS = {
    "half_recipe_env.py": "class RecipeEnv lacks collect_trajectories",
    "half_env.py": "class Half lacks compute_reward",
    "no_python_env.py": "syntax error",
    "no_package_env.py": "imports no_such_package.inner, which is not installed",
    "late_env.py": "it imports no_such_package, which is not installed",
    "no_package_near_env.py": "near.py imports no_such_package, which is not installed",
}


@pytest.fixture
def folder(home: Path) -> Path:
    return written(home / "rl" / "environments", FILES)


async def listed() -> tuple[set[str], dict[str, str]]:
    """The names of the user's environments, and why the other files cannot be used."""
    answer: dict[str, Any] = json.loads(await rl_list_environments())
    rows = [one["name"] for one in answer["environments"] if one["source"] == "user"]
    assert answer["count"] == len(answer["environments"])
    return set(rows) - {"plain_text"}, {Path(one["file_path"]).name: one["why"] for one in answer["broken"]}


async def selected(name: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(await rl_select_environment(name, "self-hosted"))
    return answer


@pytest.mark.usefixtures("folder")
async def test_the_listing_tells_what_can_be_selected_and_why_the_rest_cannot() -> None:
    names, reasons = await listed()
    assert names == SELECTABLE
    assert reasons.keys() == REASONS.keys()
    assert all(REASONS[file] in why for file, why in reasons.items()), reasons


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", sorted(SELECTABLE))
async def test_what_is_listed_can_be_selected(name: str) -> None:
    answer = await selected(name)
    assert "error" not in answer, answer


@pytest.mark.parametrize("file", sorted(REASONS))
async def test_what_is_listed_with_a_reason_is_refused_with_it(folder: Path, file: str) -> None:
    assert REASONS[file] in (await selected(str(folder / file)))["error"]


async def test_with_atroposlib_installed_its_own_environments_are_listed_with_why_no_run_takes_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    spec = ModuleSpec("atroposlib", None, is_package=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: spec if name == "atroposlib" else found(name))
    names, reasons = await listed()
    assert "recipe" not in names
    assert "lacks evaluate" in reasons["recipe_env.py"]
    written(folder, {"recipe_env.py": f"{RECIPE}\n        async def evaluate(self, *args, **kwargs): ...\n"})
    names, reasons = await listed()
    assert "recipe" not in names
    assert "docs/migrating.md" in reasons["recipe_env.py"]
    assert "docs/migrating.md" in (await selected("recipe"))["error"]
