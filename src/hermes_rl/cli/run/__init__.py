"""`hermes-rl run`: training runs from the command line."""

from hermes_rl.cli.run.group import run

__all__ = ["run"]
