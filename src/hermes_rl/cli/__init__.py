"""The hermes-rl command."""

from hermes_rl.cli.main import main

__all__ = ["main"]
