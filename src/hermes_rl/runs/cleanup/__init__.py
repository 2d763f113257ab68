"""What hermes-rl keeps on this machine's disk: found, measured, and removed when nothing uses it."""
