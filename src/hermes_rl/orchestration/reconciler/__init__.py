"""What the supervisor of a run and the driver of a fleet share: units that are started, watched and restarted."""
