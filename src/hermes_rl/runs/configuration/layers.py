"""Which value a field of a draft has: the layers that may say so, the first that does wins.

Always true: what the run sets itself goes before the preset's locked values, these before edits (of one environment,
then of the whole run), these before the preset's overrides, then what config_init says, then the preset's defaults.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hermes_rl.environment.config import ENDLESS
from hermes_rl.errors import ConfigError
from hermes_rl.runs.configuration.described import DescribedField
from hermes_rl.runs.configuration.draft import ChosenEnvironment, Draft
from hermes_rl.runs.configuration.linked import (
    FROM_ENVIRONMENT,
    LINKED,
    MODELS,
    RUN_OWNED,
    key_of,
    places_of,
)
from hermes_rl.runs.presets import Preset, SectionValues, preset_named

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of one draft, by key. A field that none speaks of has the default of its model."""

    draft: Draft
    preset: Preset
    locked: Values
    overrides: Values
    defaults: Values

    @classmethod
    def of(cls, draft: Draft) -> "Layers":
        preset = preset_named(draft.preset)
        layers = (by_key(one, preset.source) for one in (preset.locked, preset.overrides, preset.defaults))
        return cls(draft, preset, *layers)

    def decided(self) -> Values:
        """What stands above the environments' own words, for the whole run."""
        return {**self.overrides, **self.draft.changes, **self.locked}

    def linked(self, name: str) -> Any:
        """The one value of a linked field; None for what nobody has set."""
        decided = self.decided()
        if name in decided:
            return decided[name]
        if name == "wandb_name":
            return self.draft.wandb_name
        if name == "tokenizer_name":
            return self.linked("base_model")
        if name in FROM_ENVIRONMENT and (source := self._speaker(name)) is not None:
            return _env_field(source, name).default
        if name in self.defaults:
            return self.defaults[name]
        return None if name in self.preset.needs.fields else model_default(places_of(name)[0])

    def seed_of(self, chosen: ChosenEnvironment) -> int:
        """Each environment has one of its own, since equal settings with equal seeds would give groups of equal ids."""
        if "seed" in chosen.changes and "seed" not in self.locked:
            return int(chosen.changes["seed"])
        return int(self.linked("seed")) + [one.name for one in self.draft.environments].index(chosen.name)

    def section(self, section: str) -> Values:
        """What the layers say of tinker or engine, linked fields included."""
        values: Values = {}
        for key, value in {**self.defaults, **self.decided()}.items():
            values |= dict.fromkeys(_names_in(section, key), value)
        for name in LINKED:
            value = self.linked(name)
            if value is not None and (name != "use_wandb" or self.says_wandb()):
                values |= dict.fromkeys(_names_in(section, name), value)
        if not self.says_wandb():
            values.pop("use_wandb", None)
        return {name: value for name, value in values.items() if f"{section}.{name}" not in RUN_OWNED}

    def asked(self, chosen: ChosenEnvironment) -> dict[str, Any]:
        """The changes that an environment is to tell the outcome of."""
        over: dict[str, Values] = {"env": {}, "openai": {}}
        beneath: dict[str, Values] = {"env": {}, "openai": {}}
        for key, value in self.defaults.items():
            _put(beneath, key, value)
        beneath["env"].pop("use_wandb", None)
        for key, value in {**self.overrides, **self.draft.changes, **chosen.changes, **self.locked}.items():
            if key not in LINKED and _is_known(chosen, key):
                _put(over, key, value)
        for name in LINKED:
            if (value := self._linked_for(chosen, name)) is not None:
                _put(over, name, value)
        over["env"] |= {"total_steps": ENDLESS, "inference_weight": chosen.weight, "seed": self.seed_of(chosen)}
        over["env"] |= {"evaluation_only": True} if chosen.evaluation_only else {}
        over["openai"] |= {"server_type": "vllm", "api_key": None}
        return {**over, "beneath": beneath}

    def says_wandb(self) -> bool:
        """Whether somebody asks for wandb or refuses it; else it is used where it is set up, and not missed."""
        asked = "use_wandb" in self.draft.changes and "use_wandb" not in self.locked
        return asked or self.linked("use_wandb") is False

    def runs_engine(self) -> bool:
        """Whether the run starts an engine of its own."""
        return self.preset.engine and not self.decided().get("tinker.base_url")

    def _linked_for(self, chosen: ChosenEnvironment, name: str) -> Any:
        """What this environment must be told of a linked field; None where its own words stand."""
        if name == "use_wandb" and not self.says_wandb():
            return None
        if name in FROM_ENVIRONMENT and name not in self.decided():
            speaker = self._speaker(name)
            return None if speaker is None or speaker.name == chosen.name else self.linked(name)
        return self.linked(name)

    def _speaker(self, name: str) -> ChosenEnvironment | None:
        """The first environment whose config_init speaks of a field of the whole run, those that train first."""
        return next((one for one in (*self.draft.trained, *self.draft.environments) if _speaks_of(one, name)), None)


def by_key(values: SectionValues, source: str) -> Values:
    """The values of a preset's layer, less what the run sets; ConfigError where two of them are for one field."""
    found: Values = {}
    for place, value in values.by_place().items():
        if place in RUN_OWNED:
            continue
        if found.setdefault(key_of(place), value) != value:
            raise ConfigError(
                f"the preset {source} gives {key_of(place)} two values, {found[key_of(place)]!r} and {value!r} as "
                f"{place}; it is one field of several parts: keep one of them"
            )
    return found


def model_default(place: str) -> Any:
    section, _, name = place.partition(".")
    return MODELS[section].model_fields[name].get_default(call_default_factory=True)


def _env_field(chosen: ChosenEnvironment, name: str) -> DescribedField:
    place = next(place for place in places_of(name) if place.startswith("env."))
    return chosen.description.env[place.removeprefix("env.")]


def _speaks_of(chosen: ChosenEnvironment, name: str) -> bool:
    if not chosen.description.env:
        return False
    field = _env_field(chosen, name)
    # -1 leaves the size of batches to the trainer.
    return field.said and field.readable and not (name == "batch_size" and field.default < 1)


def _is_known(chosen: ChosenEnvironment, key: str) -> bool:
    """Fields of their own are not for environments that do not have them."""
    section, _, name = key.partition(".")
    return section != "env" or name in chosen.description.env or not chosen.description.env


def _names_in(section: str, key: str) -> list[str]:
    return [place.removeprefix(f"{section}.") for place in places_of(key) if place.startswith(f"{section}.")]


def _put(sections: Mapping[str, Values], key: str, value: Any) -> None:
    for place in places_of(key):
        section, _, name = place.partition(".")
        if section in sections:
            sections[section][name] = value
