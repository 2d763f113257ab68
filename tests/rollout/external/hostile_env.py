"""An environment in which the number of an item says how its agent misbehaves; AGENT is that agent.

The model writes what it is asked for. Groups of the ordinary kind are what an undisturbed run would have.
"""

import json
from pathlib import Path
from typing import Any, ClassVar

from hermes_rl import AgentResult, HermesAgentBaseEnv, ToolContext
from tests.support.scripted_model import Calls, Text

AGENT = Path(__file__).with_name("hostile_agent.py")
KINDS = ["ordinary", "never_exits", "floods", "ordinary_too", "garbage", "crowd", "crashes", "mute", "ordinary_last"]
WELL = {(1.0, "natural")}
ENDS: dict[str, set[Any]] = {
    "ordinary": WELL,
    "never_exits": {(1.0, "deadline")},
    "floods": {(1.0, "max_turns")},
    "ordinary_too": WELL,
    "garbage": WELL,
    "crowd": WELL,
    "crashes": {(1.0, "crashed")},
    "mute": {"environment/agent_command"},
    "ordinary_last": WELL,
}


class Numbers(HermesAgentBaseEnv):
    name = "hostile"
    default_toolsets: ClassVar[tuple[str, ...]] = ("terminal",)

    async def setup(self) -> None:
        self._next = 0

    async def get_next_item(self) -> dict[str, int]:
        self._next += 1
        return {"number": self._next - 1}

    def format_prompt(self, item: dict[str, int]) -> str:
        return f"{KINDS[item['number']]}: write {item['number']}"

    async def compute_reward(self, item: dict[str, int], result: AgentResult, ctx: ToolContext) -> float:
        return float(ctx.terminal("cat answer")["output"].strip() == str(item["number"]))


def writes_the_number(request: dict[str, Any]) -> Calls | Text:
    last = request["messages"][-1]
    if last["role"] == "tool" or "write " not in last["content"]:
        return Text("done")
    return Calls([("bash", json.dumps({"command": f"echo {last['content'].split()[-1]} > answer"}))])
