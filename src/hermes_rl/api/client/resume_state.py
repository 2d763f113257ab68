"""Where a registered environment resumes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResumeState:
    """`cursor` is the next draw the environment reported, None before the first.

    `done` holds later draws whose groups the API already has; empty for an API that does not track draws.
    """

    cursor: int | None = None
    done: frozenset[int] = frozenset()
