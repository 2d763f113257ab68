"""Whose fault: the one taxonomy of what goes wrong.

What the world does to a rollout is a `WorldError`: raised where the fault happened, caught once, kept as a
`Failure`, and such a rollout has no score. What the model does is never an exception.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


class Whose(StrEnum):
    """The party at fault for a rollout that has no score."""

    ENDPOINT = "endpoint"
    SANDBOX = "sandbox"
    TOOL = "tool"
    VERIFIER = "verifier"
    JUDGE = "judge"
    ENVIRONMENT = "environment"
    FRAMEWORK = "framework"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a rollout has no score. `cause` is a short stable word to count by; `message` is for a person."""

    whose: Whose
    cause: str
    message: str

    def __str__(self) -> str:
        return f"{self.whose}/{self.cause}"


class HermesRLError(Exception):
    """Base of every error we raise. Its text says what failed, with what value, and what to do."""


class ConfigError(HermesRLError):
    """The person who started the command can mend this; it is raised before any rollout."""


class WorldError(HermesRLError):
    """Something outside the model failed; the rollout it happened to is not scored."""

    whose: ClassVar[Whose] = Whose.FRAMEWORK

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause

    @property
    def failure(self) -> Failure:
        """What is kept of it with the rollout."""
        return Failure(self.whose, self.cause, str(self))


class EndpointError(WorldError):
    """The model's endpoint could not be reached, refused, hung, or answered with something unreadable."""

    whose = Whose.ENDPOINT


class ContextFullError(EndpointError):
    """A conversation is longer than the model's context. `tokens` are its own and the context's, where known."""

    def __init__(self, cause: str, message: str, tokens: tuple[int, int] | None = None) -> None:
        super().__init__(cause, message)
        self.tokens = tokens


class SandboxError(WorldError):
    """A sandbox could not start, died, or lost its connection."""

    whose = Whose.SANDBOX


class ToolHostError(WorldError):
    """What a tool needs (a search provider, a browser, an MCP server) is broken, not the call."""

    whose = Whose.TOOL


class VerifierError(WorldError):
    """The reward raised, or returned something that is not a finite number."""

    whose = Whose.VERIFIER


class JudgeError(WorldError):
    """The model that judges could not be asked, or gave no verdict."""

    whose = Whose.JUDGE


class AuthorError(WorldError):
    """The environment's own code (items, prompts) raised."""

    whose = Whose.ENVIRONMENT


class DeadlineError(WorldError):
    """Time ran out for a reason that is not the policy's own work."""


def failure_of(error: BaseException) -> Failure:
    """The failure an exception stands for; one that nobody foresaw is counted against the framework."""
    if isinstance(error, WorldError):
        return error.failure
    return Failure(Whose.FRAMEWORK, "unexpected", f"{type(error).__name__}: {error}")
