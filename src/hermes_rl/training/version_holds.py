"""VersionHolds: which policy versions are held for evaluations, by whom and for how long.

Always true: a hold ends at its deadline unless its holder renews it, so a dead evaluator holds nothing for long.
"""

import time
from collections.abc import Callable

# Each held version occupies a sampler at the engine or an adapter on vLLM servers.
MAX_HELD_VERSIONS = 4


class VersionHolds:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._holds: dict[str, tuple[int, float]] = {}

    @property
    def versions(self) -> frozenset[int]:
        """The versions held now."""
        now = self._clock()
        self._holds = {holder: hold for holder, hold in self._holds.items() if hold[1] > now}
        return frozenset(version for version, _ in self._holds.values())

    def hold(self, holder: str, version: int, seconds: float) -> bool:
        """Hold a version, and no other, for this holder; whether it is held. 0 seconds end the hold."""
        self._holds.pop(holder, None)
        held = self.versions
        if seconds <= 0 or (version not in held and len(held) >= MAX_HELD_VERSIONS):
            return False
        self._holds[holder] = version, self._clock() + seconds
        return True
