"""Bundled environments, each a runnable file, and the seeds' module names as forwards."""
