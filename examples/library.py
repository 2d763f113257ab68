#!/usr/bin/env python3
"""hermes-rl as a library: an environment, rollouts of a model, and what came out as a table and a picture.

pip install pandas matplotlib
examples/library.py http://127.0.0.1:8901/v1 smollm2       writes doubling.jsonl and doubling.png
"""

import asyncio
import sys
from pathlib import Path

from hermes_rl import AgentResult, APIServerConfig, HermesAgentBaseEnv, ToolContext, load_records
from hermes_rl.rollout.generate import generate_groups


class DoublingEnv(HermesAgentBaseEnv):
    name = "doubling"
    default_toolsets = ("terminal",)

    def train_items(self) -> list[dict[str, int]]:
        return [{"number": number} for number in range(3, 20)]

    def format_prompt(self, item: dict[str, int]) -> str:
        return f"Write twice the number {item['number']} to answer.txt with the terminal."

    async def compute_reward(self, item: dict[str, int], result: AgentResult, ctx: ToolContext) -> float:
        return 1.0 if ctx.read_file("answer.txt").get("content", "").strip() == str(2 * item["number"]) else 0.0


async def roll_out(path: Path, url: str, model: str) -> None:
    config = DoublingEnv.env_config_cls(total_steps=4, group_size=4, max_agent_turns=3, max_token_length=64)
    env = DoublingEnv(config, [APIServerConfig(base_url=url, model_name=model)])
    async with env.opened():
        await generate_groups(env, path)


if __name__ == "__main__":
    groups = Path("doubling.jsonl")
    asyncio.run(roll_out(groups, *sys.argv[1:3]))
    table = load_records(groups).to_pandas()
    print(table[["draw", "index", "score", "stop_reason", "tool_calls", "seconds"]].to_string())
    table.groupby("draw")["score"].mean().plot.bar(ylim=(0, 1), ylabel="mean score").figure.savefig("doubling.png")
