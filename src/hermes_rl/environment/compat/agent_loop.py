"""hermes-agent's `environments.agent_loop`."""

from hermes_rl.agent.loop import HermesAgentLoop
from hermes_rl.agent.result import AgentResult, ToolError


def resize_tool_pool(max_workers: int) -> None:
    """Do nothing: tools run on the event loop, and `tool_pool_size` of each environment limits the calls in flight."""


__all__ = ["AgentResult", "HermesAgentLoop", "ToolError", "resize_tool_pool"]
