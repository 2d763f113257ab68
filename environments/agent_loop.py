"""The seeds' name for the agent loop."""

from hermes_rl.agent import AgentResult, HermesAgentLoop, ToolError

__all__ = ["AgentResult", "HermesAgentLoop", "ToolError"]
