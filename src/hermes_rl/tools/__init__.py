"""What an agent can do: tools with their schemas, toolsets, and each rollout's session with its sandbox."""
