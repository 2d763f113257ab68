"""BaseEnv: the base class of Atropos' environments, which collect their rollouts themselves.

Files that import it from `atroposlib.envs.base` get this class when atroposlib is not installed.
"""

import inspect
from collections.abc import Sequence
from typing import Any

from hermes_rl.agent.result import AgentResult
from hermes_rl.core.errors import ConfigError
from hermes_rl.environment.base import Config, HermesAgentBaseEnv, Item
from hermes_rl.inference.config import APIServerConfig, ServerBaseline
from hermes_rl.rewards.tool_context import ToolContext


class BaseEnv(HermesAgentBaseEnv[Item, Config]):
    """Define `get_next_item`, and `collect_trajectories` or `collect_trajectory`."""

    def __init__(
        self,
        config: Config,
        server_configs: ServerBaseline | Sequence[APIServerConfig],
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        super().__init__(config, server_configs, slurm, testing)
        if not self.makes_own_rollouts:
            raise ConfigError(
                f"{type(self).__name__} does not say how its rollouts are made: define collect_trajectories or "
                "collect_trajectory, or derive it from HermesAgentBaseEnv and define format_prompt and compute_reward"
            )

    async def setup(self) -> None:
        """Call the author's `load_dataset`, if there is one."""
        load = getattr(self, "load_dataset", None)
        if load is not None:
            loaded = load()
            if inspect.isawaitable(loaded):
                await loaded

    @property
    def has_reward(self) -> bool:
        return type(self).compute_reward is not BaseEnv.compute_reward

    def format_prompt(self, item: Item) -> str:
        raise ConfigError(_needed_by_our_rollouts(type(self), "format_prompt"))

    async def compute_reward(self, item: Item, result: AgentResult, ctx: ToolContext) -> float:
        raise ConfigError(_needed_by_our_rollouts(type(self), "compute_reward"))


def _needed_by_our_rollouts(cls: type[Any], method: str) -> str:
    return f"{cls.__name__} has no {method}: our own rollouts need it, and `super().collect_trajectory` runs one"
