"""`hermes-rl process` (Run): generate groups of rollouts and write them to a JSONL file."""

from hermes_rl.cli.environment_command import environment_mode

process = environment_mode("process")
