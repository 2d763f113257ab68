"""Agents that are programs of their own: started in the rollout's sandbox, with the gateway as their only way out."""

from hermes_rl.environment.outside.program import with_agent

__all__ = ["with_agent"]
