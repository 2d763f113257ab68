"""Which toolsets an agent gets: those the configuration names, those of a distribution, else the class's default ones.

The choice is a value; sampling from it is given its random generator, so groups repeat and never share anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from hermes_rl.errors import ConfigError
from hermes_rl.tools.toolsets import known_toolsets, toolset_named


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`distribution` gives each toolset its own probability; `disabled` is taken away from whatever was chosen."""

    enabled: Sequence[str] | None = None
    disabled: Sequence[str] = ()
    distribution: Mapping[str, float] | None = None
    default: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.enabled is not None and self.distribution is not None:
            raise ConfigError("enabled_toolsets and distribution exclude each other; set one of them")
        if self.enabled is None and self.distribution is None and not self.default:
            raise ConfigError(
                "no toolset was chosen: set enabled_toolsets or distribution, or default_toolsets on the class; "
                f"known: {known_toolsets()}. An empty list means an agent without tools."
            )
        for name in (*self._named(), *self.disabled):
            toolset_named(name)

    def possible(self) -> list[str]:
        """Every toolset that a group may get; these are opened before the first rollout."""
        return [name for name in self._named() if name not in self.disabled]

    def sample(self, random: Random) -> list[str]:
        """The toolsets of one group: each by its own chance, and never none of a distribution."""
        possible = self.possible()
        if self.distribution is None or not possible:
            return possible
        drawn = [name for name in possible if random.random() < self.distribution[name]]
        return drawn or [max(possible, key=self.distribution.__getitem__)]

    def _named(self) -> list[str]:
        if self.distribution is not None:
            return [name for name, chance in self.distribution.items() if chance > 0]
        return list(dict.fromkeys(self.default if self.enabled is None else self.enabled))
