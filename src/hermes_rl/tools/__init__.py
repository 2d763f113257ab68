"""What an agent can do: tools with their schemas, toolsets, and each rollout's session with its sandbox."""

from hermes_rl.tools.choice import ToolChoice
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.session import ToolOutcome, ToolSession
from hermes_rl.tools.tool import Tool, ToolUseError, tool
from hermes_rl.tools.toolset import OpenToolset, Toolset, ToolsetSettings
from hermes_rl.tools.toolsets import TOOLSETS, all_tools, open_toolsets, toolset_named

__all__ = [
    "TOOLSETS",
    "OpenToolset",
    "Tool",
    "ToolChoice",
    "ToolHost",
    "ToolOutcome",
    "ToolSession",
    "ToolUseError",
    "Toolset",
    "ToolsetSettings",
    "all_tools",
    "open_toolsets",
    "tool",
    "toolset_named",
]
