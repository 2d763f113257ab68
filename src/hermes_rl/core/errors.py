"""The error taxonomy.

An infrastructure fault raises an `InfrastructureError` where it happens. It is caught once and stored as a `Failure`,
and the rollout gets no score. What the model does wrong is never an exception.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from hermes_rl.core.redaction import redact_urls


class FailureSource(StrEnum):
    """The component that failed when a rollout has no score."""

    ENDPOINT = "endpoint"
    SANDBOX = "sandbox"
    TOOL = "tool"
    VERIFIER = "verifier"
    JUDGE = "judge"
    ENVIRONMENT = "environment"
    FRAMEWORK = "framework"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a rollout has no score. `cause` is a short stable code for counting; `message` is for people."""

    whose: FailureSource
    cause: str
    message: str

    def __str__(self) -> str:
        return f"{self.whose}/{self.cause}"


class HermesRLError(Exception):
    """Base class of all hermes-rl errors. The message says what failed, with what value, and what to do.

    Messages are shown and saved, and many name a URL: a password in it is hidden here, for all of them.
    """

    def __str__(self) -> str:
        return redact_urls(super().__str__())


class ConfigError(HermesRLError):
    """A configuration error that the user can fix; raised before any rollout."""


class InfrastructureError(HermesRLError):
    """Something outside the model failed; the affected rollout is not scored."""

    whose: ClassVar[FailureSource] = FailureSource.FRAMEWORK

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause

    @property
    def failure(self) -> Failure:
        """The error as it is stored with its rollout."""
        return Failure(self.whose, self.cause, str(self))


class EndpointError(InfrastructureError):
    """The model endpoint was unreachable, refused the request, hung, or sent an unreadable response."""

    whose = FailureSource.ENDPOINT


class ContextFullError(EndpointError):
    """The conversation exceeds the model's context. `tokens` holds its length and the context's, where known."""

    def __init__(self, cause: str, message: str, tokens: tuple[int, int] | None = None) -> None:
        super().__init__(cause, message)
        self.tokens = tokens


class SandboxError(InfrastructureError):
    """A sandbox failed to start, died, or lost its connection."""

    whose = FailureSource.SANDBOX


class ToolHostError(InfrastructureError):
    """A tool's backend (search provider, browser, MCP server) failed; the call itself was fine."""

    whose = FailureSource.TOOL


class VerifierError(InfrastructureError):
    """The reward function raised, or did not return a finite number."""

    whose = FailureSource.VERIFIER


class JudgeError(InfrastructureError):
    """The judge model could not be reached, or gave no verdict."""

    whose = FailureSource.JUDGE


class EnvironmentCodeError(InfrastructureError):
    """The environment's own code (items, prompts) raised."""

    whose = FailureSource.ENVIRONMENT


class DeadlineError(InfrastructureError):
    """A deadline passed for a reason other than the policy's own work."""


def failure_of(error: BaseException) -> Failure:
    """The exception as a Failure; an unexpected one counts against the framework."""
    if isinstance(error, InfrastructureError):
        return error.failure
    return Failure(FailureSource.FRAMEWORK, "unexpected", redact_urls(f"{type(error).__name__}: {error}"))
