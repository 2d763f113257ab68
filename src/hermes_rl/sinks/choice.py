"""Which sinks a run has besides its file: those that are asked for, and wandb where somebody has set it up."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from hermes_rl.errors import ConfigError
from hermes_rl.sinks.wandb_run import wandb_is_set_up


class SinkFields(Protocol):
    """The fields of a configuration that say where metrics go."""

    @property
    def use_wandb(self) -> bool: ...
    @property
    def metric_sinks(self) -> Sequence[str]: ...
    @property
    def model_fields_set(self) -> set[str]: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """`use_wandb` is None for: where it is installed and set up. `section` is that of the flags, for messages."""

    sinks: Sequence[str] = ()
    use_wandb: bool | None = None
    section: str = "env"

    @classmethod
    def by(cls, config: SinkFields, section: str) -> Self:
        """What a configuration asks for.

        `use_wandb` is true by default, as in Atropos: then wandb is used where somebody has set it up, and where not,
        nobody hears of it. Set to true, it is asked for; set to false, it is not used whatever else is set.
        """
        unsaid = config.use_wandb and "use_wandb" not in config.model_fields_set
        return cls(tuple(config.metric_sinks), None if unsaid else config.use_wandb, section)


def chosen(asked: Asked, environment: Mapping[str, str]) -> list[str]:
    """The names of the sinks; ConfigError when one that was asked for is not installed."""
    names = list(dict.fromkeys(asked.sinks))
    if "wandb" not in names and (
        asked.use_wandb or (asked.use_wandb is None and _installed("wandb") and wandb_is_set_up(environment))
    ):
        names.append("wandb")
    if asked.use_wandb is False or environment.get("WANDB_MODE") == "disabled":
        names = [name for name in names if name != "wandb"]
    for name in names:
        if not _installed(name):
            flags = f"--{asked.section}"
            without = f"{flags}.use_wandb false" if name == "wandb" else f"leave it out of {flags}.metric_sinks"
            raise ConfigError(f"metrics cannot go to {name}: pip install 'hermes-rl[{name}]', or {without}")
    return names


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
