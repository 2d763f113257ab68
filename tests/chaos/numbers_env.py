"""Environments whose runs are killed: small tasks of known outcome, so that two runs can be compared to the byte.

A rollout is asked to write a number; the scripted model does so, or writes another, by the seed it is sent. What it
says at the end is long, so that a record takes a while to write.
"""

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from hermes_rl import AgentResult, HermesAgentBaseEnv, ToolContext
from tests.support.scripted_model import Calls, Reply, Script, Text, delayed

ITEMS = 12
HELD_OUT = 1000
LONG_ANSWER = "all is written. " * 16_000


class Streamed(HermesAgentBaseEnv):
    """Numbers, one after the other, from `get_next_item`."""

    name = "numbers"
    default_toolsets: ClassVar[tuple[str, ...]] = ("terminal",)

    async def setup(self) -> None:
        self._last = 0

    async def get_next_item(self) -> dict[str, int]:
        self._last += 1
        return {"number": self._last}

    def eval_items(self) -> Sequence[dict[str, int]]:
        return [{"number": HELD_OUT + number} for number in range(ITEMS)]

    def format_prompt(self, item: dict[str, int]) -> str:
        return f"write {item['number']}"

    async def compute_reward(self, item: dict[str, int], result: AgentResult, ctx: ToolContext) -> float:
        written = ctx.read_file("answer").get("content", "").strip()
        return 1.0 if written == str(item["number"]) else 0.0


class Drawn(Streamed):
    """The same numbers as a sequence that a sampler draws from."""

    def train_items(self) -> Sequence[dict[str, int]]:
        return [{"number": number + 1} for number in range(ITEMS)]


def writes_a_number(delay: float, background: str = "true") -> Script:
    """A model that writes the number or one less, and leaves a command running in the background of its sandbox."""

    def script(request: dict[str, Any]) -> Reply:
        if request["messages"][-1]["role"] == "tool":
            return Text(LONG_ANSWER)
        number = int(request["messages"][-1]["content"].split()[-1]) - request["seed"] % 2
        command = f"setsid {background} > /dev/null 2>&1 & echo {number} > answer"
        return Calls([("terminal", json.dumps({"command": command}))])

    return delayed(delay, script)
