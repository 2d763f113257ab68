"""`hermes-rl process`: generate rollouts into a JSONL file."""

from hermes_rl.cli.environment_command import environment_mode

process = environment_mode("process")
