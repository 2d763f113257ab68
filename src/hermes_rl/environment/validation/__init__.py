"""Validation: what an environment's own tests and `hermes-rl validate` ask of it."""
