"""`hermes-rl evaluate`: run the agent on held-out items."""

from hermes_rl.cli.environment_command import environment_mode

evaluate = environment_mode("evaluate")
