"""The configuration of a run that has not started: a preset, the environments and the edits.

Always true: a draft is immutable, so an edit returns a new one; it contains no secret.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes_rl.orchestration.configuration.introspect import Description


@dataclass(frozen=True, slots=True)
class ChosenEnvironment:
    name: str
    id: str
    reference: str
    description: Description = field(repr=False)
    weight: float = 1.0
    evaluation_only: bool = False
    changes: dict[str, Any] = field(default_factory=dict)
    """Edits to this environment alone, by key."""

    @property
    def file(self) -> Path:
        """`reference` is FILE.py:CLASS."""
        file, colon, _ = self.reference.rpartition(":")
        return Path(file if colon else self.reference)


@dataclass(frozen=True, slots=True)
class Draft:
    preset: str
    environments: tuple[ChosenEnvironment, ...]
    wandb_name: str
    """The default name of the run."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Edits to the whole run, by key: shared_fields.py."""

    @property
    def trained(self) -> tuple[ChosenEnvironment, ...]:
        return tuple(chosen for chosen in self.environments if not chosen.evaluation_only)

    def environment(self, name: str) -> ChosenEnvironment | None:
        return next((chosen for chosen in self.environments if chosen.name == name), None)
