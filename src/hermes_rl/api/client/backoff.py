"""How often it was asked in vain, which says how long to wait before asking again."""

from hermes_rl.waiting import pause


class Backoff:
    """The waits of one asker. `reset` when it was answered."""

    def __init__(self, shortest: float = 0.1, longest: float = 5.0) -> None:
        self._shortest = shortest
        self._longest = longest
        self._tries = 0

    def reset(self) -> None:
        self._tries = 0

    def next(self) -> float:
        """The next wait in seconds, between half and the whole of what is due."""
        self._tries += 1
        return pause(self._tries - 1, first=self._shortest, longest=self._longest)
