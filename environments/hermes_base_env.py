"""The seeds' name for the base class, its configuration and what they imported beside it."""

from hermes_rl.agent import AgentResult, HermesAgentLoop
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.config import BaseEnvConfig, HermesAgentEnvConfig
from hermes_rl.inference import APIServerConfig, ServerBaseline, ServerManager
from hermes_rl.rewards import ToolContext

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
