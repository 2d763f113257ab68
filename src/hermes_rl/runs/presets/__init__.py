"""Presets: the values of a run that are locked, and those it begins with. One YAML file each, ours and the user's own.

Always true: a preset's values are of the types that the run's parts take; a file of the user's own stands for ours of
the same name.
"""

import difflib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hermes_rl.environment.config import HermesAgentEnvConfig
from hermes_rl.errors import ConfigError
from hermes_rl.home import rl_home
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.runs.literal_secrets import holds_secret
from hermes_rl.runs.run_file import EngineEntry
from hermes_rl.training.settings import TrainerSettings

DEFAULT_PRESET = "tinker"
SECTIONS: dict[str, type[BaseModel]] = {
    "env": HermesAgentEnvConfig,
    "openai": APIServerConfig,
    "tinker": TrainerSettings,
    "engine": EngineEntry,
}
_BUNDLED = Path(__file__).parent


class SectionValues(BaseModel):
    """Values by section and field. Of `env`, fields that only some environments have are for those."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env: dict[str, Any] = Field(default_factory=dict)
    openai: dict[str, Any] = Field(default_factory=dict)
    tinker: dict[str, Any] = Field(default_factory=dict)
    engine: dict[str, Any] = Field(default_factory=dict)

    def by_place(self) -> dict[str, Any]:
        """The values by `SECTION.FIELD`."""
        return {f"{section}.{name}": value for section in SECTIONS for name, value in getattr(self, section).items()}


class Needs(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: tuple[str, ...] = ()
    """Names of keys without which no run can start."""
    fields: dict[str, Literal["value", "model", "folder"]] = Field(default_factory=dict)
    """Fields that somebody must set first: to anything, to a model (a folder or a hub's name), or to a folder."""


class Preset(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    source: str
    """Its file."""
    description: str
    needs: Needs = Needs()
    engine: bool = False
    """Whether the run starts an engine of its own, unless tinker.base_url names one."""
    locked: SectionValues = SectionValues()
    overrides: SectionValues = SectionValues()
    """Over what the environment's config_init says, and open to edits."""
    defaults: SectionValues = SectionValues()
    """Beneath what the environment's config_init says, and open to edits."""


def preset_names() -> list[str]:
    return sorted(_files())


def preset_named(name: str) -> Preset:
    """ConfigError names those there are, or the file and what is wrong in it."""
    files = _files()
    if name not in files:
        near = difflib.get_close_matches(str(name), files, n=1)
        raise ConfigError(
            f"preset {name!r} is none of {', '.join(sorted(files))}"
            + (f"; did you mean {near[0]!r}?" if near else "")
            + f"; one of your own is a file {own_presets() / 'NAME.yaml'}"
        )
    return _read(name, files[name])


def listed_presets() -> list[dict[str, str]]:
    """All there are, with what each is for; of a broken one, what is wrong."""
    listed = []
    for name in preset_names():
        try:
            listed.append({"name": name, "description": preset_named(name).description})
        except ConfigError as error:
            listed.append({"name": name, "problem": str(error)})
    return listed


def own_presets() -> Path:
    return rl_home() / "presets"


def _files() -> dict[str, Path]:
    return {path.stem: path for folder in (_BUNDLED, own_presets()) for path in sorted(folder.glob("*.yaml"))}


def _read(name: str, path: Path) -> Preset:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"the preset {path} cannot be read: {error}") from None
    return _preset(name, path, text)


# A draft is asked for its preset's values hundreds of times when it is shown.
@lru_cache(maxsize=32)
def _preset(name: str, path: Path, text: str) -> Preset:
    try:
        told = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"the preset {path} is not valid YAML: {error}") from None
    if not isinstance(told, dict):
        raise ConfigError(f"the preset {path} must have description, needs, locked and defaults")
    # A section that is left empty is null in YAML.
    filled = {key: value for key, value in told.items() if value is not None}
    try:
        preset = Preset.model_validate({**filled, "name": name, "source": str(path)})
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ConfigError(f"the preset {path}: {problems}") from None
    for layer in ("locked", "overrides", "defaults"):
        for section, model in SECTIONS.items():
            _check(getattr(getattr(preset, layer), section), model, f"the preset {path}: {layer}.{section}")
    return preset


def _check(values: Mapping[str, Any], model: type[BaseModel], where: str) -> None:
    for name, value in values.items():
        if holds_secret(name, value):
            raise ConfigError(f"{where}.{name} holds a secret; write env:NAME or file:PATH instead")
        if name not in model.model_fields:
            if model is HermesAgentEnvConfig:
                # An environment may have fields of its own.
                continue
            near = difflib.get_close_matches(name, model.model_fields, n=1)
            raise ConfigError(f"{where}: unknown field {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        try:
            model.model_validate({name: value})
        except ValidationError as error:
            # Of the others nothing was given, and they may be needed.
            for one in error.errors():
                if one["loc"][:1] == (name,):
                    raise ConfigError(f"{where}.{name}: {one['msg']}, got {value!r}") from None
