"""An environment whose agent browses with a real Chromium, on the event loop that the product runs on."""

import asyncio
from typing import ClassVar

import uvloop

from hermes_rl import AgentResult, HermesAgentBaseEnv, ToolContext
from tests.support.browser_site import Site, explorer
from tests.support.environments import opened
from tests.support.scripted_model import ScriptedModel


class TreasureEnv(HermesAgentBaseEnv):
    """The reward looks at the page that the agent left open."""

    default_toolsets: ClassVar[tuple[str, ...]] = ("browser",)

    async def setup(self) -> None:
        pass

    async def get_next_item(self) -> dict[str, str]:
        return {"find": "treasure"}

    def format_prompt(self, item: dict[str, str]) -> str:
        return f"Find the {item['find']}."

    async def compute_reward(self, item: dict[str, str], result: AgentResult, ctx: ToolContext) -> float:
        left_open = ctx.browser_snapshot()["snapshot"]
        home = ctx.browser_navigate(self.site)
        return float("You found the treasure" in left_open and home["title"] == "Home")

    site: str


def test_a_reward_sees_the_page_the_agent_left_open() -> None:
    async def run() -> list[float | None]:
        async with Site().served() as site, ScriptedModel(explorer(site.url)) as model:
            settings = {"browser": {"executable": "chromium", "allowed_hosts": ["127.0.0.1"]}}
            async with opened(TreasureEnv, model, group_size=2, tool_settings=settings) as env:
                env.site = f"{site.url}/"
                group = await env.collect_group(await env.get_next_item())
                return [rollout.score for rollout in group.rollouts]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) == [1.0, 1.0]
