"""Ready-made agents: programs of others, each with a file that says how it is installed, configured and started."""

from hermes_rl.agents.agent import Agent, AgentProgram
from hermes_rl.agents.registry import AGENTS, agent_named

__all__ = ["AGENTS", "Agent", "AgentProgram", "agent_named"]
