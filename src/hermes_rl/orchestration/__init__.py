"""Training runs: discover environments, configure, start, monitor and stop runs, for people and for agents."""
