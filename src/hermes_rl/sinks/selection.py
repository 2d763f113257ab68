"""Selects the sinks of a run besides its file: the requested ones, and wandb if it is set up."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from hermes_rl.console.live_display import warn
from hermes_rl.core.errors import ConfigError
from hermes_rl.extensions import SINKS
from hermes_rl.sinks.wandb_sink import wandb_is_set_up


class SinkFields(Protocol):
    """The configuration fields that select sinks."""

    @property
    def use_wandb(self) -> bool: ...
    @property
    def metric_sinks(self) -> Sequence[str]: ...
    @property
    def model_fields_set(self) -> set[str]: ...


@dataclass(frozen=True, slots=True)
class SinkConfig:
    """`use_wandb` None means: if installed and set up. `section` is the CLI section, for messages."""

    sinks: Sequence[str] = ()
    use_wandb: bool | None = None
    section: str = "env"

    @classmethod
    def from_config(cls, config: SinkFields, section: str) -> Self:
        """The sinks that a configuration requests.

        `use_wandb` defaults to true, as in Atropos: wandb is then used if it is set up, and silently skipped otherwise.
        Explicitly true warns if wandb is not installed; false disables it whatever else is set.
        """
        implicit = config.use_wandb and "use_wandb" not in config.model_fields_set
        return cls(tuple(config.metric_sinks), None if implicit else config.use_wandb, section)


def select_sinks(config: SinkConfig, environment: Mapping[str, str]) -> list[str]:
    """The names of the sinks; ConfigError if one of `metric_sinks` is not installed, a warning for `use_wandb`."""
    names = list(dict.fromkeys(config.sinks))
    flags = f"--{config.section}"
    if config.use_wandb is False or environment.get("WANDB_MODE") == "disabled":
        names = [name for name in names if name != "wandb"]
    elif "wandb" not in names and (config.use_wandb or wandb_is_set_up(environment)):
        if _installed("wandb"):
            names.append("wandb")
        elif config.use_wandb:
            warn(
                "wandb is not installed, so metrics are only written to the local file; to log to wandb: "
                f"pip install 'hermes-rl[wandb]'; to hide this warning: {flags}.use_wandb false"
            )
    for name in names:
        if name in SINKS.builtin and not _installed(name):
            raise ConfigError(
                f"cannot log metrics to {name}: pip install 'hermes-rl[{name}]', or remove it from {flags}.metric_sinks"
            )
    return names


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
