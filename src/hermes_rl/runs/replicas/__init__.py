"""Many replicas of one `serve`: on this machine or as Ray actors, resized and drained while they run."""
