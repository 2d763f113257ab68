"""Scoring: the verifier's door into the sandbox, and the bridge that lets rewards call it without await."""

from hermes_rl.rewards.sync_bridge import bridged, wait
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.rewards.verification import Verdict

__all__ = ["ToolContext", "Verdict", "bridged", "wait"]
