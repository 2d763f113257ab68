"""Agents that are programs of their own: started in the rollout's sandbox, with the gateway as their only way out."""
