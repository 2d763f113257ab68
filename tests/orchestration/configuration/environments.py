"""Environment files for the tests of configuration."""

import hashlib
from pathlib import Path

from hermes_rl.orchestration.discovery.types import BaseClassKind, DiscoveredEnvironment, EnvironmentSource

PLAIN = '''
"""An environment with fields of its own, and values of its own in config_init."""
from typing import Any, Literal
from pydantic import Field, model_validator
from hermes_rl import AgentResult, HermesAgentBaseEnv, HermesAgentEnvConfig, ToolContext


class CountingConfig(HermesAgentEnvConfig):
    level: int = Field(3, ge=1, le=9, description="How hard the items are.")
    style: Literal["short", "long"] = Field("short", description="How the prompts are written.")
    low: int = 0
    high: int = 10

    @model_validator(mode="after")
    def _in_order(self) -> "CountingConfig":
        if self.low > self.high:
            raise ValueError(f"low {self.low} must not be more than high {self.high}")
        return self


class CountingEnv(HermesAgentBaseEnv):
    """Count."""
    name = "counting"
    env_config_cls = CountingConfig
    default_toolsets = ("terminal",)

    @classmethod
    def config_init(cls) -> tuple[CountingConfig, list[Any]]:
        return CountingConfig(level=5, max_agent_turns=7), []

    def train_items(self) -> list[int]:
        return [1, 2, 3]

    def format_prompt(self, item: int) -> str:
        return str(item)

    async def compute_reward(self, item: int, result: AgentResult, ctx: ToolContext) -> float:
        return 1.0
'''


def written(
    folder: Path, text: str = PLAIN, *, name: str = "counting", kind: BaseClassKind = BaseClassKind.HERMES
) -> DiscoveredEnvironment:
    """The file of an environment, as discovery finds it."""
    file = folder / f"{name}_env.py"
    file.write_text(text.replace('"counting"', f'"{name}"'))
    version = hashlib.sha256(file.read_bytes()).hexdigest()[:8]
    return DiscoveredEnvironment(name, version, "CountingEnv", file, EnvironmentSource.USER, kind, "")


def model_folder(folder: Path) -> str:
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text("{}")
    return str(model)
