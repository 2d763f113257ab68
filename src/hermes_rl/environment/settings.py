"""From command line, YAML and config_init to one configuration: CLI over YAML over config_init.

Unknown keys are refused with the nearest known one, and every value is checked by the model that owns it.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from hermes_rl.environment.config import HermesAgentEnvConfig
from hermes_rl.environment.contract import Environment
from hermes_rl.errors import ConfigError
from hermes_rl.inference import APIServerConfig, ServerBaseline

Model = TypeVar("Model", bound=BaseModel)

SECTIONS = ("env", "openai", "tinker")
SECRETS = {"api_key", "inference_token", "rollout_server_token"}


@dataclass(frozen=True, slots=True)
class Settings:
    env: HermesAgentEnvConfig
    endpoints: tuple[APIServerConfig, ...]

    @property
    def has_endpoint(self) -> bool:
        return bool(self.endpoints) and all(endpoint.base_url for endpoint in self.endpoints)


def resolve(
    environment: type[Environment],
    file: Path | None,
    env_flags: Mapping[str, str],
    openai_flags: Mapping[str, str],
) -> Settings:
    """The settings of one command; ConfigError names the field and the source at fault."""
    env_default, endpoints_default = defaults(environment)
    sections = read_yaml(file) if file else {}
    env_values = _known(sections.get("env") or {}, type(env_default), f"{file}, section env")
    env = _merged(env_default, env_values | _parsed(type(env_default), env_flags), "env")
    from_yaml = sections.get("openai") or {}
    yaml_endpoints = from_yaml if isinstance(from_yaml, list) else [from_yaml]
    for values in yaml_endpoints:
        _known(values, APIServerConfig, f"{file}, section openai")
    flags = _parsed(APIServerConfig, openai_flags)
    if isinstance(from_yaml, list) and len(from_yaml) > 1:
        if flags:
            raise ConfigError(
                f"{file} lists {len(from_yaml)} endpoints, so --openai.* flags are ambiguous; change the file instead"
            )
        return Settings(env, tuple(_merged(APIServerConfig(), values, "openai") for values in from_yaml))
    over = (yaml_endpoints[0] if yaml_endpoints else {}) | flags
    if not endpoints_default:
        return Settings(env, (_merged(APIServerConfig(), over, "openai"),) if over else ())
    return Settings(env, tuple(_merged(endpoint, over, "openai") for endpoint in endpoints_default))


def merged_section(default: Model, section: str, file: Path | None, flags: Mapping[str, str]) -> Model:
    """One section alone, for a command that runs no environment."""
    values = _known((read_yaml(file) if file else {}).get(section) or {}, type(default), f"{file}, section {section}")
    return _merged(default, values | _parsed(type(default), flags), section)


def defaults(environment: type[Environment]) -> tuple[HermesAgentEnvConfig, list[APIServerConfig]]:
    """What config_init gives, as our own models. Atropos' classes are taken by their values."""
    env, endpoints = environment.config_init()
    if not isinstance(env, HermesAgentEnvConfig):
        raise ConfigError(f"{environment.__name__}.config_init must return (config, [APIServerConfig, …])")
    given: Sequence[Any] = endpoints if isinstance(endpoints, list | tuple) else [endpoints]
    return env, [_endpoint(one) for one in given if isinstance(one, BaseModel) and type(one) is not ServerBaseline]


def read_yaml(file: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(file.read_text()) or {}
    except OSError as error:
        raise ConfigError(f"--config {file} cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {file} is not valid YAML: {error}") from None
    if not isinstance(values, dict) or (unknown := set(values) - set(SECTIONS)):
        found = sorted(unknown) if isinstance(values, dict) else type(values).__name__
        raise ConfigError(f"--config {file} must have the sections {', '.join(SECTIONS)} only, found {found}")
    return values


def parse_flag(annotation: Any, text: str) -> Any:
    """A flag's text as a value: words for strings, a,b or [a, b] for lists, YAML for the rest."""
    kinds = _kinds(annotation)
    if NoneType in kinds and text.lower() in ("none", "null", ""):
        return None
    if str in kinds:
        return text
    if any((get_origin(kind) or kind) is list for kind in kinds) and not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _kinds(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _parsed(model: type[BaseModel], flags: Mapping[str, str]) -> dict[str, Any]:
    return {name: parse_flag(model.model_fields[name].annotation, text) for name, text in flags.items()}


def _known(values: Mapping[str, Any], model: type[BaseModel], where: str) -> dict[str, Any]:
    for name in values:
        if name not in model.model_fields:
            near = difflib.get_close_matches(name, model.model_fields, n=1)
            raise ConfigError(f"{where}: unknown field {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return dict(values)


def _merged(base: Model, over: Mapping[str, Any], section: str) -> Model:
    try:
        return type(base).model_validate(base.model_dump(exclude_unset=True) | dict(over))
    except ValidationError as error:
        problems = "; ".join(_problem(section, problem) for problem in error.errors())
        raise ConfigError(problems) from None


def _endpoint(config: BaseModel) -> APIServerConfig:
    if isinstance(config, APIServerConfig):
        return config
    fields = APIServerConfig.model_fields
    return APIServerConfig.model_validate({k: v for k, v in config.model_dump().items() if k in fields})


def _problem(section: str, problem: Any) -> str:
    """One of pydantic's complaints as the flag, what is wrong and the value; a key's value is never shown."""
    place = ".".join(map(str, problem["loc"]))
    if not place:
        return str(problem["msg"])
    got = "" if SECRETS & set(problem["loc"]) else f", got {problem['input']!r}"
    return f"--{section}.{place}: {problem['msg']}{got}"
