"""Selects an agent's toolsets: from the configuration, from a distribution, or the class's defaults.

The selection is immutable, and sampling takes its random generator, so groups are reproducible and independent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from hermes_rl.core.errors import ConfigError
from hermes_rl.tools.registry import get_toolset, known_toolsets


@dataclass(frozen=True, slots=True)
class ToolsetSelection:
    """`distribution` maps each toolset to a probability; `disabled` toolsets are removed from any selection."""

    enabled: Sequence[str] | None = None
    disabled: Sequence[str] = ()
    distribution: Mapping[str, float] | None = None
    default: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.enabled is not None and self.distribution is not None:
            raise ConfigError("enabled_toolsets and distribution are mutually exclusive; set one of them")
        if self.enabled is None and self.distribution is None and not self.default:
            raise ConfigError(
                "no toolset is selected: set enabled_toolsets or distribution, or default_toolsets on the class; "
                f"known: {known_toolsets()}. An empty list means an agent without tools."
            )
        for name in (*self._named_toolsets(), *self.disabled):
            get_toolset(name)

    def candidates(self) -> list[str]:
        """Every toolset a group may get; these are opened before the first rollout."""
        return [name for name in self._named_toolsets() if name not in self.disabled]

    def sample(self, random: Random) -> list[str]:
        """Sample the toolsets of one group; a distribution always yields at least one."""
        candidates = self.candidates()
        if self.distribution is None or not candidates:
            return candidates
        sampled = [name for name in candidates if random.random() < self.distribution[name]]
        return sampled or [max(candidates, key=self.distribution.__getitem__)]

    def _named_toolsets(self) -> list[str]:
        if self.distribution is not None:
            return [name for name, probability in self.distribution.items() if probability > 0]
        return list(dict.fromkeys(self.default if self.enabled is None else self.enabled))
