"""PackageError: what other projects' code does wrong when it runs for us. Never the policy's fault, never a score."""

from enum import StrEnum

from hermes_rl.core.errors import EnvironmentCodeError


class PackageFault(StrEnum):
    """What went wrong: the cause of a PackageError."""

    RAISED = "package_raised"
    DIED = "package_died"
    HUNG = "package_hung"
    UNSUPPORTED = "package_unsupported"


class PackageError(EnvironmentCodeError):
    """The code or the process of another project's environment failed; the rollouts that needed it have no score."""
