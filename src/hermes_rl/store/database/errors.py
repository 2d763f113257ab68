"""Errors of the store. Always true: a call that raises one of these changed nothing.

The exception is StoreUnavailableError: a connection that broke during the commit may have committed. Retrying is safe.
"""

from hermes_rl.core.errors import ConfigError, HermesRLError


class StoreError(HermesRLError):
    """The database operation failed."""


class StoreFullError(StoreError):
    """The disk is full. The store works again once there is space."""


class StoreUnavailableError(StoreError):
    """The database is unreachable or was busy for too long. Retry."""


class UnknownEnvironmentError(StoreError):
    """No environment is registered under this number."""


class UnknownTrainerError(StoreError):
    """No trainer is registered under this name."""


class LeaseLostError(StoreError):
    """The lease expired or was released and its groups are in another batch: roll back what was learned from it."""


class VersionUsedError(StoreError):
    """A policy version is not greater than all previous ones, so it may name other weights."""


class NewerSchemaError(ConfigError):
    """The database was written by a newer version of hermes-rl."""
