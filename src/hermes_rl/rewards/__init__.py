"""Scoring: the verifier's door into the sandbox, and the bridge that lets rewards call it without await."""

from hermes_rl.rewards.sync_bridge import bridged, wait
from hermes_rl.rewards.tool_context import ToolContext

__all__ = ["ToolContext", "bridged", "wait"]
