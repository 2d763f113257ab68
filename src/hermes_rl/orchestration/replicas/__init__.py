"""Replicas of one `serve`, on this machine or as Ray actors, that can be resized and drained while they run."""
