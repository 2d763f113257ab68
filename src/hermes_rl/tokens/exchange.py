"""One exchange with an engine: the ids it was given, the ids it gave back, and why it stopped.

An engine's own form of all this ends at its adapter; from here on there is one.
"""

from enum import StrEnum
from typing import NamedTuple


class Finish(StrEnum):
    """Why a completion ended. An engine that broke it off raises instead."""

    STOP = "stop"
    LENGTH = "length"
    """As many tokens as were asked for."""
    CONTEXT = "context_full"
    """Fewer than were asked for: the model's context is full."""


class Sampled(NamedTuple):
    """One completion: a column each of ids, logprobs and policy versions (None where the engine does not say)."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int | None, ...]
    finish: Finish


class Answer(NamedTuple):
    """What an engine says to one request: the prompt as it read it (None when it does not say), its length, and `n`."""

    completions: tuple[Sampled, ...]
    prompt: tuple[int, ...] | None = None
    prompt_length: int | None = None
    cached_tokens: int | None = None
