"""The hermes-rl command."""
