"""What an agent can do: tools with their schemas, toolsets, and each rollout's session with its sandbox."""

from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.session import ToolOutcome, ToolSession
from hermes_rl.tools.tool import Tool, ToolUseError, tool
from hermes_rl.tools.toolsets import TOOLSETS, all_tools, chosen_tools

__all__ = [
    "TOOLSETS",
    "Tool",
    "ToolHost",
    "ToolOutcome",
    "ToolSession",
    "ToolUseError",
    "all_tools",
    "chosen_tools",
    "tool",
]
