"""Rollouts and groups: sample items, run and score rollouts, filter and count groups."""
