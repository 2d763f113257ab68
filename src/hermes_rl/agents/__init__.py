"""Ready-made agents: programs of others, each with a file that says how it is installed, configured and started."""
