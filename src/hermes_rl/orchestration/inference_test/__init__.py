"""The inference test: a few groups of an environment with several models, to see that it works before training."""
