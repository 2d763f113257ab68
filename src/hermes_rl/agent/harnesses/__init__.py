"""Ready-made agents: external programs, each with a file on how to install, configure and start it."""
