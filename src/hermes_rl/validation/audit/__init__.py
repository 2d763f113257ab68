"""Audit of a dataset: per task, whether its reward can be trusted, for `hermes-rl audit`."""
