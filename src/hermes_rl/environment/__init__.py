"""Environments: the base class that authors subclass, its configuration, and its command line."""

# Installs the finder of the seeds' module names where no .pth file did, such as on a PYTHONPATH.
import _hermes_rl_imports  # noqa: F401
