"""hermes-agent's `environments.tool_context`."""

from hermes_rl.rewards.tool_context import ToolContext

__all__ = ["ToolContext"]
