"""Training runs: found, configured, started, watched and stopped, by people and by agents."""
