"""The seeds' module name for the base class, its configuration, and the other names they imported from it."""

from hermes_rl.agent.loop import HermesAgentLoop
from hermes_rl.agent.result import AgentResult
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.inference.config import APIServerConfig, ServerBaseline
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.rollout.config import BaseEnvConfig, HermesAgentEnvConfig

__all__ = [
    "APIServerConfig",
    "AgentResult",
    "BaseEnvConfig",
    "HermesAgentBaseEnv",
    "HermesAgentEnvConfig",
    "HermesAgentLoop",
    "ServerBaseline",
    "ServerManager",
    "ToolContext",
]
