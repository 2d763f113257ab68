"""Types and utilities that every other package uses: messages, errors, trajectories, JSON, paths, deadlines, locks."""
