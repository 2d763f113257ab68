"""Where metrics go: a local JSONL file always, wandb and trackio when asked for.

The file comes first and has every line. No other sink can stop a run, slow its event loop or ask on the terminal.
"""
