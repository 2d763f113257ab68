"""Weight export: a run's adapter as PEFT, as a merged model or as GGUF for llama.cpp, with a model card."""

from hermes_rl.core.errors import ConfigError

try:
    import numpy  # noqa: F401, ICN001 (imported first for a clear error message)
except ImportError as error:
    raise ConfigError("weight export needs numpy: pip install 'hermes-rl[train]'") from error
