"""Selects an agent's toolsets: from the configuration, from a distribution, or the class's defaults.

The environment's own tools are given unless they are disabled, or a distribution names them and does not sample them.
The selection is immutable, and sampling takes its random generator, so groups are reproducible and independent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from hermes_rl.core.errors import ConfigError
from hermes_rl.extensions import TOOLSETS
from hermes_rl.tools.registry import get_toolset

# Stands for all of the environment's own tools.
OWN_TOOLS = "own_tools"


@dataclass(frozen=True, slots=True)
class ToolsetSelection:
    """`distribution` maps each toolset to a probability; `disabled` toolsets are removed from any selection.

    `own` are the names of the environment's own tools. A distribution and `disabled` may name them, and `own_tools` for
    all of them.
    """

    enabled: Sequence[str] | None = None
    disabled: Sequence[str] = ()
    distribution: Mapping[str, float] | None = None
    default: Sequence[str] = ()
    own: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.enabled is not None and self.distribution is not None:
            raise ConfigError("enabled_toolsets and distribution are mutually exclusive; set one of them")
        for name in (*self._named(), *self.disabled):
            if not self._is_own(name) or (self.enabled is not None and name in self.enabled):
                get_toolset(name)

    def candidates(self) -> list[str]:
        """Every toolset a group may get; these are opened before the first rollout."""
        return [name for name in self._candidates() if not self._is_own(name)]

    def sample(self, random: Random) -> tuple[list[str], list[str]]:
        """Sample the toolsets and own tools of one group; a distribution always yields at least one of its names."""
        candidates = sampled = self._candidates()
        if self.distribution is not None and candidates:
            sampled = [name for name in candidates if random.random() < self.distribution[name]]
            sampled = sampled or [max(candidates, key=self.distribution.__getitem__)]
        toolsets = [name for name in sampled if not self._is_own(name)]
        absent = {*self.disabled, *(self.distribution or ())} - {*sampled}
        if OWN_TOOLS in absent:
            # Those that are named themselves have a probability of their own.
            return toolsets, [name for name in self.own if name in sampled and OWN_TOOLS not in self.disabled]
        return toolsets, [name for name in self.own if name not in absent]

    def _candidates(self) -> list[str]:
        return [name for name in self._named() if name not in self.disabled]

    def _is_own(self, name: str) -> bool:
        """Whether a name means own tools; a toolset that has it comes first."""
        return name == OWN_TOOLS or (name in self.own and name not in TOOLSETS.names())

    def _named(self) -> list[str]:
        if self.distribution is not None:
            return [name for name, probability in self.distribution.items() if probability > 0]
        return list(dict.fromkeys(self.default if self.enabled is None else self.enabled))
