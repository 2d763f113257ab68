"""`hermes-rl process`: generate rollouts into a JSONL file."""

from hermes_rl.cli.environment_verb import environment_mode

process = environment_mode("process")
