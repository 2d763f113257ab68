"""Sandboxes: one rollout's machine each, behind one protocol, whatever runs them."""
