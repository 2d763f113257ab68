"""The Tinker API as training engine: hosted Tinker, or a self-hosted server with the same API."""

from hermes_rl.core.errors import ConfigError

try:
    import tinker  # noqa: F401 (imported first for a clear error message)
except ImportError as error:
    raise ConfigError("the trainer needs the Tinker SDK: pip install 'hermes-rl[train]'") from error

from hermes_rl.training.engines.tinker.calls import Calls
from hermes_rl.training.engines.tinker.engine import TinkerEngine, delete_state, find_state
from hermes_rl.training.engines.tinker.sampler import TinkerSampler

__all__ = ["Calls", "TinkerEngine", "TinkerSampler", "delete_state", "find_state"]
