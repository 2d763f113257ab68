"""Environments to be tested: an item is a number, and the reward is 1 when the model says it. Some are broken."""

import asyncio
import subprocess
from typing import Any, ClassVar

from hermes_rl import AgentResult, HermesAgentBaseEnv, ToolContext


class Trial(HermesAgentBaseEnv):
    name = "trial"
    default_toolsets: ClassVar[tuple[str, ...]] = ("terminal",)

    async def setup(self) -> None:
        self.taken = 0

    async def get_next_item(self) -> Any:
        self.taken += 1
        return {"number": self.taken}

    def format_prompt(self, item: Any) -> str:
        return f"say {item['number']}"

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
        return float(result.final_response == str(item["number"]))


class StartsADaemon(Trial):
    async def setup(self) -> None:
        await super().setup()
        await asyncio.to_thread(subprocess.Popen, ["sleep", "300"], start_new_session=True)


class BrokenSetup(Trial):
    async def setup(self) -> None:
        raise FileNotFoundError("items.json is not there")


class BrokenPrompt(Trial):
    def format_prompt(self, item: Any) -> str:
        return str(item["question"])


class BrokenReward(Trial):
    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
        return float("nan")
