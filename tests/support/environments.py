"""Small environments for tests, and a way to run one on a scripted model."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from hermes_rl import AgentResult, APIServerConfig, HermesAgentBaseEnv, Reward, ToolContext
from tests.support.scripted_model import ScriptedModel

Env = TypeVar("Env", bound=HermesAgentBaseEnv)


class FileEnv(HermesAgentBaseEnv):
    """Items are numbers; the reward is 1 when the sandbox holds a file `answer` with that number in it."""

    default_toolsets: ClassVar[tuple[str, ...]] = ("terminal", "file")

    async def setup(self) -> None:
        self.taken = 0
        self._eval_items = [{"number": 100 + index} for index in range(5)]

    async def get_next_item(self) -> dict[str, int]:
        self.taken += 1
        return {"number": self.taken}

    def format_prompt(self, item: dict[str, int]) -> str:
        return f"write {item['number']}"

    async def compute_reward(self, item: dict[str, int], result: AgentResult, ctx: ToolContext) -> float | Reward:
        return 1.0 if ctx.terminal("cat answer")["output"].strip() == str(item["number"]) else 0.0


@asynccontextmanager
async def opened(
    environment: type[Env], model: ScriptedModel, *, metrics_path: Path | None = None, **config: Any
) -> AsyncIterator[Env]:
    """The environment, open, on a scripted model that is asked once and not again."""
    endpoint = APIServerConfig(base_url=model.base_url, model_name="scripted", max_retries=0, timeout=20)
    env = environment(environment.env_config_cls(**config), [endpoint])
    env.metrics_path = metrics_path
    async with env.opened():
        yield env
