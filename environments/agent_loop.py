"""The seeds' name for the agent loop."""

from hermes_rl.agent.loop import HermesAgentLoop
from hermes_rl.agent.result import AgentResult, ToolError

__all__ = ["AgentResult", "HermesAgentLoop", "ToolError"]
