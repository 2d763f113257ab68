"""The agent: the loop every rollout spends its life in, its limits, and the result it hands to the reward."""
