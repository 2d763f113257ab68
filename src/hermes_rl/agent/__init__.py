"""The agent loop of a rollout, its limits, and the result it hands to the reward."""
