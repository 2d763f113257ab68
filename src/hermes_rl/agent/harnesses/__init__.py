"""Harnesses: ready-made external agents, one file each on how to install, configure and start it."""
