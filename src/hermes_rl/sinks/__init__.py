"""Metric sinks: a local JSONL file always, wandb and trackio on request.

Always true: the file is written first and has every line; no other sink can stop a run, block its event loop or prompt
on the terminal.
"""
