"""An environment written to the seed's guide loads without traces. tests/seeds runs such files."""

import sys
from pathlib import Path
from typing import Any

from hermes_rl.environment.loading.loader import load_environment

REPOSITORY = Path(__file__).resolve().parents[2]
FIXTURE = REPOSITORY / "tests" / "fixtures" / "seed_env.py"


def test_the_seeded_shuffle_splits_the_same_way_each_time() -> None:
    import asyncio
    import random

    def split() -> list[Any]:
        environment = load_environment(str(FIXTURE))
        config, endpoints = environment.config_init()
        for one in endpoints:
            one.health_check = False
        env = environment(config, endpoints)

        async def items() -> list[Any]:
            async with env.opened():
                return list(env.eval_items())

        return asyncio.run(items())

    random.seed(1)
    before = random.getstate()
    first = split()
    assert random.getstate() == before
    assert split() == first


def test_the_names_of_atroposlib_are_served_when_it_is_absent(tmp_path: Path) -> None:
    file = tmp_path / "atropos_style_env.py"
    imports = (
        "from atroposlib.envs.base import BaseEnvConfig, ScoredDataGroup, ScoredDataItem\n"
        "from atroposlib.envs.server_handling.server_manager import APIServerConfig, ServerBaseline\n"
        "from atroposlib.type_definitions import Item\n"
    )
    file.write_text(imports + FIXTURE.read_text())
    environment = load_environment(str(file))
    _, (server,) = environment.config_init()
    assert server.model_name == "default"


def test_loading_leaves_no_alias_behind_for_others(tmp_path: Path) -> None:
    before = set(sys.modules)
    load_environment(str(FIXTURE))
    assert {name for name in set(sys.modules) - before if name.startswith(("environments", "atroposlib"))} == set()
