"""Sandboxes: one isolated machine per rollout, behind one protocol for all backends."""
