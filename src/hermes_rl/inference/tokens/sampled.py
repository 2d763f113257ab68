"""One exchange with an engine, in a form that all engines share: prompt ids, sampled ids, and the finish reason."""

from enum import StrEnum
from typing import NamedTuple


class Finish(StrEnum):
    """Why a completion ended. A completion that the engine aborted raises instead."""

    STOP = "stop"
    LENGTH = "length"
    """Reached the requested number of tokens."""
    CONTEXT = "context_full"
    """Ended earlier because the model's context is full."""


class Sampled(NamedTuple):
    """One completion: its ids, logprobs and policy versions (None where the engine reports none)."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int | None, ...]
    finish: Finish


class EngineAnswer(NamedTuple):
    """An engine's answer: `n` completions, and the prompt and its length as the engine read it, if reported."""

    completions: tuple[Sampled, ...]
    prompt: tuple[int, ...] | None = None
    prompt_length: int | None = None
    cached_tokens: int | None = None
