"""The value of each field of a draft, from layers in order of precedence.

Always true: values that the run sets win over the preset's locked values, then edits (of one environment, then of the
whole run), then the preset's overrides, then config_init, then the preset's defaults.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.configuration.draft import ChosenEnvironment, Draft
from hermes_rl.orchestration.configuration.introspect import DescribedField
from hermes_rl.orchestration.configuration.shared_fields import (
    FROM_ENVIRONMENT,
    LINKED_FIELDS,
    RUN_OWNED_FIELDS,
    key_of,
    paths_of,
)
from hermes_rl.orchestration.presets.preset import SECTIONS, Preset, SectionValues, load_preset

Values = dict[str, Any]
# Rollouts in flight at a stop are never trained on, so do not wait long for them.
STOP_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of one draft, by key. A field in none of them has its model's default."""

    draft: Draft
    preset: Preset
    locked: Values
    overrides: Values
    defaults: Values

    @classmethod
    def from_draft(cls, draft: Draft) -> "Layers":
        preset = load_preset(draft.preset)
        sections = (preset.locked, preset.overrides, preset.defaults)
        layers = (values_by_key(values, preset.source) for values in sections)
        return cls(draft, preset, *layers)

    def decided(self) -> Values:
        """The values that take precedence over config_init, for the whole run."""
        return {**self.overrides, **self.draft.changes, **self.locked}

    def linked_value(self, name: str) -> Any:
        """The single value of a linked field; None when it is not set."""
        decided = self.decided()
        if name in decided:
            return decided[name]
        if name == "wandb_name":
            return self.draft.wandb_name
        if name == "tokenizer_name":
            return self.linked_value("base_model")
        if name in FROM_ENVIRONMENT and (source := self._source_environment(name)) is not None:
            return _env_field(source, name).default
        if name in self.defaults:
            return self.defaults[name]
        return None if name in self.preset.needs.fields else model_default(paths_of(name)[0])

    def seed_for(self, chosen: ChosenEnvironment) -> int:
        """A different seed per environment: equal settings with equal seeds would give groups with equal ids."""
        if "seed" in chosen.changes and "seed" not in self.locked:
            return int(chosen.changes["seed"])
        names = [environment.name for environment in self.draft.environments]
        return int(self.linked_value("seed")) + names.index(chosen.name)

    def section(self, section: str) -> Values:
        """The values of the tinker or engine section, including linked fields."""
        values: Values = {}
        for key, value in {**self.defaults, **self.decided()}.items():
            values |= dict.fromkeys(names_in(section, key), value)
        for name in LINKED_FIELDS:
            value = self.linked_value(name)
            if value is not None and (name != "use_wandb" or self.is_wandb_explicit()):
                values |= dict.fromkeys(names_in(section, name), value)
        if not self.is_wandb_explicit():
            values.pop("use_wandb", None)
        return {name: value for name, value in values.items() if f"{section}.{name}" not in RUN_OWNED_FIELDS}

    def changes_for(self, chosen: ChosenEnvironment) -> dict[str, Any]:
        """The changes to describe an environment with."""
        over: dict[str, Values] = {"env": {}, "openai": {}}
        defaults_below: dict[str, Values] = {"env": {"stop_timeout": STOP_SECONDS}, "openai": {}}
        for key, value in self.defaults.items():
            _put(defaults_below, key, value)
        defaults_below["env"].pop("use_wandb", None)
        for key, value in {**self.overrides, **self.draft.changes, **chosen.changes, **self.locked}.items():
            if key not in LINKED_FIELDS and _is_known(chosen, key):
                _put(over, key, value)
        for name in LINKED_FIELDS:
            if (value := self._linked_value_for(chosen, name)) is not None:
                _put(over, name, value)
        for section, values in self.run_values(chosen).items():
            over[section] |= values
        return {**over, "defaults_below": defaults_below}

    def run_values(self, chosen: ChosenEnvironment) -> dict[str, Values]:
        """The values that the run sets in an environment's sections. The trainer serves inference as vLLM does."""
        env = {
            "seed": self.seed_for(chosen),
            "inference_weight": chosen.weight,
            "evaluation_only": chosen.evaluation_only,
        }
        return {"env": env, "openai": {"server_type": "vllm", "api_key": None}}

    def is_wandb_explicit(self) -> bool:
        """Whether wandb was explicitly turned on or off; otherwise it is used where it is configured."""
        edited = "use_wandb" in self.draft.changes and "use_wandb" not in self.locked
        return edited or self.linked_value("use_wandb") is False

    def runs_engine(self) -> bool:
        """Whether the run starts its own engine."""
        return self.preset.engine and not self.decided().get("tinker.base_url")

    def _linked_value_for(self, chosen: ChosenEnvironment, name: str) -> Any:
        """The value of a linked field to set in this environment; None where config_init decides."""
        if name == "use_wandb" and not self.is_wandb_explicit():
            return None
        if name in FROM_ENVIRONMENT and name not in self.decided():
            source = self._source_environment(name)
            return None if source is None or source.name == chosen.name else self.linked_value(name)
        return self.linked_value(name)

    def _source_environment(self, name: str) -> ChosenEnvironment | None:
        """The first environment whose config_init sets a field of the whole run, trained ones first."""
        ordered = (*self.draft.trained, *self.draft.environments)
        return next((chosen for chosen in ordered if _sets_field(chosen, name)), None)


def values_by_key(values: SectionValues, source: str) -> Values:
    """The values of a preset's layer without those that the run sets; ConfigError for conflicting values."""
    found: Values = {}
    for path, value in values.by_path().items():
        if path in RUN_OWNED_FIELDS:
            continue
        if found.setdefault(key_of(path), value) != value:
            raise ConfigError(
                f"the preset {source} sets {key_of(path)} to both {found[key_of(path)]!r} and {value!r} (as {path}); "
                "several parts share this field: keep one value"
            )
    return found


def model_default(path: str) -> Any:
    section, _, name = path.partition(".")
    return SECTIONS[section].model_fields[name].get_default(call_default_factory=True)


def _env_field(chosen: ChosenEnvironment, name: str) -> DescribedField:
    path = next(path for path in paths_of(name) if path.startswith("env."))
    return chosen.description.env[path.removeprefix("env.")]


def _sets_field(chosen: ChosenEnvironment, name: str) -> bool:
    if not chosen.description.env:
        return False
    field = _env_field(chosen, name)
    # -1 leaves the batch size to the trainer.
    return field.set_by_config_init and field.readable and not (name == "batch_size" and field.default < 1)


def _is_known(chosen: ChosenEnvironment, key: str) -> bool:
    """Whether the environment has this field."""
    section, _, name = key.partition(".")
    return section != "env" or name in chosen.description.env or not chosen.description.env


def names_in(section: str, key: str) -> list[str]:
    """The fields of a section that the key sets."""
    return [path.removeprefix(f"{section}.") for path in paths_of(key) if path.startswith(f"{section}.")]


def _put(sections: Mapping[str, Values], key: str, value: Any) -> None:
    for path in paths_of(key):
        section, _, name = path.partition(".")
        if section in sections:
            sections[section][name] = value
