"""What the store refuses and how it fails. Always true: after any of these nothing of the call was kept.

The one exception is StoreUnavailableError: a connection that broke during the commit may have kept it, so a call can be
made again.
"""

from hermes_rl.errors import ConfigError, HermesRLError


class StoreError(HermesRLError):
    """The database could not do what was asked."""


class StoreFullError(StoreError):
    """The disk has no room for it. The store goes on working once there is some."""


class StoreUnavailableError(StoreError):
    """The database cannot be reached or is busy for too long. To be tried again."""


class UnknownEnvironmentError(StoreError):
    """No environment is registered by this number."""


class UnknownTrainerError(StoreError):
    """No trainer is registered by this name."""


class LeaseLostError(StoreError):
    """The batch lapsed or was released, and its groups went elsewhere: what was learned from it must be rolled back."""


class VersionUsedError(StoreError):
    """A policy version is not above all before it, so it may name other weights already."""


class NewerSchemaError(ConfigError):
    """The database was written by a later version of hermes-rl."""
