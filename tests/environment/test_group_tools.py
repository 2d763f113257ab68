"""Groups with different tools run at once and never see each other's; the seed's design, kept here, fails this.

The seed stored a group's tools on the environment and let its rollouts read them back later.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.rollout.group import run_group
from hermes_rl.tools.distributions import DISTRIBUTIONS
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import ScriptedModel, Text, delayed

GROUPS = 24
HALVES = {"halves": {"terminal": 0.5, "file": 0.5}}
CONFIG: dict[str, Any] = {"distribution": "halves", "toolset_distributions": HALVES}
# What a rollout did: the tools its group was given, and those it was run with.
Seen = tuple[frozenset[str], frozenset[str]]


async def our_groups(env: FileEnv, model: ScriptedModel) -> list[Seen]:
    groups = await asyncio.gather(*(run_group(env, {"number": number}, size=2) for number in range(GROUPS)))
    given = {f"write {group.item['number']}": frozenset(group.tools) for group in groups}
    return [
        (given[body["messages"][0]["content"]], frozenset(tool["function"]["name"] for tool in body["tools"]))
        for body in model.bodies
    ]


async def seed_groups(env: FileEnv, model: ScriptedModel) -> list[Seen]:
    holder: dict[str, frozenset[str]] = {}

    async def rollout(given: frozenset[str]) -> Seen:
        await asyncio.sleep(0)
        return given, holder["_current_group_tools"]

    async def group() -> list[Seen]:
        given = frozenset(env.group_tools()[1])
        holder["_current_group_tools"] = given
        return list(await asyncio.gather(rollout(given), rollout(given)))

    return [seen for group_seen in await asyncio.gather(*(group() for _ in range(GROUPS))) for seen in group_seen]


async def kept_apart(run: Callable[[FileEnv, ScriptedModel], Awaitable[list[Seen]]]) -> bool:
    async with ScriptedModel(delayed(0.01, lambda _: Text("no"))) as model, opened(FileEnv, model, **CONFIG) as env:
        seen = await run(env, model)
    assert len(seen) == 2 * GROUPS
    assert len({given for given, _ in seen}) == 3
    return all(given == used for given, used in seen)


async def test_groups_running_at_once_keep_their_own_tools() -> None:
    assert await kept_apart(our_groups)


async def test_the_seeds_way_mixes_them_up() -> None:
    assert not await kept_apart(seed_groups)


async def test_the_toolsets_of_a_run_repeat_with_its_seed() -> None:
    async def drawn(seed: int) -> list[frozenset[str]]:
        async with ScriptedModel(lambda _: Text("no")) as model, opened(FileEnv, model, seed=seed, **CONFIG) as env:
            return [frozenset(env.group_tools()[1]) for _ in range(GROUPS)]

    assert await drawn(1) == await drawn(1)
    assert await drawn(1) != await drawn(2)


async def test_an_unknown_distribution_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no toolset distribution is named 'all'; known: balanced, .*terminal_tasks"):
        async with ScriptedModel(lambda _: Text("no")) as model, opened(FileEnv, model, distribution="all"):
            pass


async def test_a_chance_outside_zero_and_one_is_refused() -> None:
    wrong: dict[str, Any] = {"distribution": "mine", "toolset_distributions": {"mine": {"terminal": 80}}}
    with pytest.raises(ConfigError, match="probabilities from 0 to 1"):
        async with ScriptedModel(lambda _: Text("no")) as model, opened(FileEnv, model, **wrong):
            pass


def test_the_seventeen_distributions_are_there() -> None:
    assert len(DISTRIBUTIONS) == 17
    assert {name for chances in DISTRIBUTIONS.values() for name in chances} == {
        "browser", "file", "terminal", "vision", "web",
    }  # fmt: skip
