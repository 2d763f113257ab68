"""`hermes-rl run` (Train): start, watch and stop training runs."""

from hermes_rl.cli.run.commands import run

__all__ = ["run"]
