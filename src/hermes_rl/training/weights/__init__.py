"""Weights out: a run's adapter as PEFT, as a whole model or as a file for llama.cpp, with a card that says whence."""

from hermes_rl.errors import ConfigError

try:
    import numpy  # noqa: F401, ICN001 (to say what is missing before the parts do)
except ImportError as error:
    raise ConfigError("weights are computed with numpy: pip install 'hermes-rl[train]'") from error
