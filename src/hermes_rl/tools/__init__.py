"""The agent's tools: schemas, toolsets, and each rollout's session with its sandbox."""
