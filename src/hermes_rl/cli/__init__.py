"""The `hermes-rl` command line, one module per command."""
