"""A run in the making: a preset, the environments, and what was edited.

Always true: a draft never changes, an edit gives another one; it holds no secret.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes_rl.runs.configuration.described import Description


@dataclass(frozen=True, slots=True)
class ChosenEnvironment:
    name: str
    id: str
    reference: str
    description: Description = field(repr=False)
    weight: float = 1.0
    evaluation_only: bool = False
    changes: dict[str, Any] = field(default_factory=dict)
    """What was edited of this one alone, by key."""

    @property
    def file(self) -> Path:
        """Its file; `reference` is FILE.py:CLASS."""
        place, colon, _ = self.reference.rpartition(":")
        return Path(place if colon else self.reference)


@dataclass(frozen=True, slots=True)
class Draft:
    preset: str
    environments: tuple[ChosenEnvironment, ...]
    wandb_name: str
    """The name that the run gets unless somebody gives it another."""
    changes: dict[str, Any] = field(default_factory=dict)
    """What was edited of the whole run, by key: linked.py."""

    @property
    def trained(self) -> tuple[ChosenEnvironment, ...]:
        return tuple(one for one in self.environments if not one.evaluation_only)

    def environment(self, name: str) -> ChosenEnvironment | None:
        return next((one for one in self.environments if one.name == name), None)
