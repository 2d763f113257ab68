"""hermes-agent's `environments.hermes_base_env`: the base class, its configuration, and the names it imports."""

from hermes_rl.agent.loop import HermesAgentLoop
from hermes_rl.agent.result import AgentResult
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.compat.atropos import (
    APIServerConfig,
    BaseEnv,
    BaseEnvConfig,
    EvalHandlingEnum,
    Item,
    ScoredDataGroup,
    ScoredDataItem,
    ServerBaseline,
    ServerManager,
)
from hermes_rl.environment.compat.model_tools import get_tool_definitions
from hermes_rl.environment.compat.toolset_distributions import sample_toolsets_from_distribution
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.rollout.config import HermesAgentEnvConfig

__all__ = [
    "APIServerConfig",
    "AgentResult",
    "BaseEnv",
    "BaseEnvConfig",
    "EvalHandlingEnum",
    "HermesAgentBaseEnv",
    "HermesAgentEnvConfig",
    "HermesAgentLoop",
    "Item",
    "ScoredDataGroup",
    "ScoredDataItem",
    "ServerBaseline",
    "ServerManager",
    "ToolContext",
    "get_tool_definitions",
    "sample_toolsets_from_distribution",
]
