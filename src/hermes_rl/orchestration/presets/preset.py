"""Presets: the locked and default values of a run, one YAML file each, bundled or the user's.

Always true: a preset's values have the types of the settings they set; a user's preset replaces a bundled one of the
same name.
"""

import difflib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hermes_rl.core import yaml_text
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.paths import rl_home
from hermes_rl.core.validation import problem_text
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.orchestration.run_file import EngineEntry
from hermes_rl.orchestration.secret_settings import holds_secret
from hermes_rl.rollout.config import HermesAgentEnvConfig
from hermes_rl.training.config import TrainerSettings

DEFAULT_PRESET = "tinker"
SECTIONS: dict[str, type[BaseModel]] = {
    "env": HermesAgentEnvConfig,
    "openai": APIServerConfig,
    "tinker": TrainerSettings,
    "engine": EngineEntry,
}
_BUNDLED = Path(__file__).parent


class SectionValues(BaseModel):
    """Values by section and field. `env` fields that only some environments have apply to those only."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env: dict[str, Any] = Field(default_factory=dict)
    openai: dict[str, Any] = Field(default_factory=dict)
    tinker: dict[str, Any] = Field(default_factory=dict)
    engine: dict[str, Any] = Field(default_factory=dict)

    def by_path(self) -> dict[str, Any]:
        """The values by `SECTION.FIELD`."""
        return {f"{section}.{name}": value for section in SECTIONS for name, value in getattr(self, section).items()}


class Needs(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: tuple[str, ...] = ()
    """Names of the keys that a run requires."""
    fields: dict[str, Literal["value", "model", "folder"]] = Field(default_factory=dict)
    """Fields that the user must set: to any value, to a model (a folder or a name on the hub), or to a folder."""


class Preset(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    source: str
    """The path of its file."""
    description: str
    needs: Needs = Needs()
    engine: bool = False
    """Whether the run starts its own engine, unless tinker.base_url names one."""
    locked: SectionValues = SectionValues()
    overrides: SectionValues = SectionValues()
    """Take precedence over the environment's config_init; editable."""
    defaults: SectionValues = SectionValues()
    """Yield to the environment's config_init; editable."""


def preset_names() -> list[str]:
    return sorted(_files())


def load_preset(name: str) -> Preset:
    """ConfigError for an unknown name, with the known ones, or for an invalid file."""
    files = _files()
    if name not in files:
        similar = difflib.get_close_matches(str(name), files, n=1)
        raise ConfigError(
            f"preset {name!r} is not one of {', '.join(sorted(files))}"
            + (f"; did you mean {similar[0]!r}?" if similar else "")
            + f"; to add your own, write {user_presets_dir() / 'NAME.yaml'}"
        )
    return _read(name, files[name])


def list_presets() -> list[dict[str, str]]:
    """All presets with their descriptions, or with the problem of an invalid one."""
    listed = []
    for name in preset_names():
        try:
            listed.append({"name": name, "description": load_preset(name).description})
        except ConfigError as error:
            listed.append({"name": name, "problem": str(error)})
    return listed


def user_presets_dir() -> Path:
    return rl_home() / "presets"


def _files() -> dict[str, Path]:
    return {path.stem: path for folder in (_BUNDLED, user_presets_dir()) for path in sorted(folder.glob("*.yaml"))}


def _read(name: str, path: Path) -> Preset:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"the preset {path} cannot be read: {error}") from None
    return _parse_preset(name, path, text)


# Cached: showing a draft reads its preset's values hundreds of times.
@lru_cache(maxsize=32)
def _parse_preset(name: str, path: Path, text: str) -> Preset:
    try:
        data = yaml_text.loads(text)
    except yaml_text.BadYamlError as error:
        raise ConfigError(f"the preset {path} is not valid YAML: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"the preset {path} must be a mapping with description, needs, locked and defaults")
    # An empty section is null in YAML.
    sections = {key: value for key, value in data.items() if value is not None}
    try:
        preset = Preset.model_validate({**sections, "name": name, "source": str(path)})
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc']))}: {problem_text(problem)}" for problem in error.errors()
        )
        raise ConfigError(f"the preset {path}: {problems}") from None
    for layer in ("locked", "overrides", "defaults"):
        for section, model in SECTIONS.items():
            _check(getattr(getattr(preset, layer), section), model, f"the preset {path}: {layer}.{section}")
    return preset


def _check(values: Mapping[str, Any], model: type[BaseModel], where: str) -> None:
    for name, value in values.items():
        if holds_secret(name, value):
            raise ConfigError(f"{where}.{name} contains a secret; write env:NAME or file:PATH instead")
        if name not in model.model_fields:
            if model is HermesAgentEnvConfig:
                # The environment may define further fields.
                continue
            similar = difflib.get_close_matches(name, model.model_fields, n=1)
            raise ConfigError(
                f"{where}: unknown field {name!r}" + (f"; did you mean {similar[0]!r}?" if similar else "")
            )
        try:
            model.model_validate({name: value})
        except ValidationError as error:
            # Only this field was given; errors about missing ones do not count.
            for problem in error.errors():
                if problem["loc"][:1] == (name,):
                    raise ConfigError(f"{where}.{name}: {problem_text(problem)}, got {value!r}") from None
