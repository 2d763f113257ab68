"""An environment that workers of replicas serve in tests: an item is a number, and nothing needs a sandbox."""

from collections.abc import Sequence
from typing import Any, ClassVar

from hermes_rl import AgentResult, HermesAgentBaseEnv, HermesAgentEnvConfig, ToolContext


class NumbersConfig(HermesAgentEnvConfig):
    items: int = 60


class Numbers(HermesAgentBaseEnv):
    """So many numbers from `get_next_item`, then no more."""

    name = "numbers"
    env_config_cls = NumbersConfig
    config: NumbersConfig
    default_toolsets: ClassVar[tuple[str, ...]] = ("todo",)

    async def setup(self) -> None:
        self.taken = 0

    async def get_next_item(self) -> Any:
        if self.taken >= self.config.items:
            return None
        self.taken += 1
        return {"number": self.taken}

    def eval_items(self) -> Sequence[Any]:
        return [{"number": 100_000}]

    def format_prompt(self, item: Any) -> str:
        return f"say {item['number']}"

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
        return float(result.messages[-1]["content"] == str(item["number"]))
