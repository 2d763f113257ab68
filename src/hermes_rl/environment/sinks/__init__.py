"""Where metrics go: a local JSONL file always, wandb and trackio when asked for.

The file comes first and has every line. No other sink can stop a run, slow its event loop or ask on the terminal.
"""

from hermes_rl.environment.sinks.opening import Sinks, open_sinks

__all__ = ["Sinks", "open_sinks"]
