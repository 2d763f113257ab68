"""Where an environment stands with the API it registered at."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Standing:
    """The next draw the environment said it would make, None before the first; and what is finished from there on.

    `done` holds draws whose groups the API has already; an API that keeps no draws says none.
    """

    cursor: int | None = None
    done: frozenset[int] = frozenset()
