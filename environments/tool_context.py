"""The seeds' name for the verifier's door into the sandbox."""

from hermes_rl.rewards.tool_context import ToolContext

__all__ = ["ToolContext"]
