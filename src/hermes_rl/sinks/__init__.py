"""Where metrics go: a local JSONL file always, wandb and trackio when asked for.

The file comes first and has every line. No other sink can stop a run, slow its event loop or ask on the terminal.
"""

from hermes_rl.sinks.choice import Asked
from hermes_rl.sinks.opening import MetricsRun, Sinks, open_sinks
from hermes_rl.sinks.reading import read_metrics
from hermes_rl.sinks.values import saved_config

__all__ = ["Asked", "MetricsRun", "Sinks", "open_sinks", "read_metrics", "saved_config"]
