"""Validation of environments, for their own tests and `hermes-rl validate`."""
