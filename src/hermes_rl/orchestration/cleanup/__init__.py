"""Find, measure and remove the files that hermes-rl keeps on this machine."""
