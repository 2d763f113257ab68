"""The agent: the loop every rollout spends its life in, and the result it hands to the reward."""

from hermes_rl.agent.loop import ChatServer, HermesAgentLoop
from hermes_rl.agent.result import AgentResult, ToolError

__all__ = ["AgentResult", "ChatServer", "HermesAgentLoop", "ToolError"]
