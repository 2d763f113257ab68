"""The Tinker API as the engine that trains and samples: hosted, or a server of your own that speaks it."""

from hermes_rl.errors import ConfigError

try:
    import tinker  # noqa: F401 (to say what is missing before its parts do)
except ImportError as error:
    raise ConfigError("the trainer speaks the Tinker API: pip install 'hermes-rl[train]'") from error

from hermes_rl.training.tinker_api.calls import Calls
from hermes_rl.training.tinker_api.engine import TinkerEngine
from hermes_rl.training.tinker_api.sampler import TinkerSampler

__all__ = ["Calls", "TinkerEngine", "TinkerSampler"]
